/* data_races.h - lets ThreadSanitizer ignore the races of the programs.

   The programs of these tests have races between streams on purpose. The functions below read and
   write the memory of the program for its copies, fills and kernels, and nothing else; all other
   races are reported. */
#ifndef DATA_RACES_H
#define DATA_RACES_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DATA_RACES_IGNORED
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(DATA_RACES_IGNORED)
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void) {
    return "race:^ds__cpu_copy_bytes$\n"
           "race:^ds__cpu_fill_row$\n"
           "race:^ds__cuda_copy_rows$\n"
           "race:^ds__cuda_host_work$\n"
           /* the stand-in for cudart */
           "race:^copy_bytes$\n"
           "race:^run_copy$\n"
           "race:^run_fill$\n"
           "race:^store_value$\n"
           "race:^load_value$\n";
}
#endif

#endif
