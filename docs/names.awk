# The functions of the headers, for page.awk and header.awk: with () behind a name doxygen makes a link of it. here: this folder.
BEGIN {
    root = here
    sub(/\/docs$/, "", root)
    n = split("devstream devstream_alloc devstream_comm devstream_rng devstream_kernel", head, " ")
    for (i = 1; i <= n; i++) {
        file = root "/" head[i] ".h"
        while ((getline line < file) > 0 && line !~ /^#endif .. DEVSTREAM_[A-Z_]*INCLUDED/)
            if (line ~ /^(DSDEF|DSINLINE) / && match(line, /ds_[a-z0-9_]+\(/)) functions[substr(line, RSTART, RLENGTH - 1)]
        close(file)
    }
}
function linked(text,    done, name) {
    done = ""
    while (match(text, /[A-Za-z0-9_]+/)) {
        name = substr(text, RSTART, RLENGTH)
        done = done substr(text, 1, RSTART + RLENGTH - 1)
        text = substr(text, RSTART + RLENGTH)
        if (name in functions && text !~ /^\(/) done = done "()"
    }
    return done text
}
