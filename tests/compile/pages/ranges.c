/* expect: uploads of the second half
   expect: ds_fill
   expect: power draw of cpu:0 */
#include "page.h"

#include "4.c"
#include "5.c"

int main(void) {
#include "1.c"
#include "2.c"
#include "3.c"
#include "6.c"
#include "7.c"
#include "8.c"
    return ds_shutdown() < 0;
}
