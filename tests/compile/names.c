/* What the declarations may include themselves; the macros of this file are not devstream's. */
#include <stddef.h>
#include <stdint.h>
