/* expect: uploads of the second half
   expect: power draw of cpu:0 */
#include "page.h"

#include "4.c"

int main(void) {
#include "1.c"
#include "2.c"
#include "3.c"
#include "5.c"
#include "6.c"
    return ds_shutdown() < 0;
}
