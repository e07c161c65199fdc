/* With CUDA compiled in: when it cannot be used, the report names the call of cudart that said
   so, and its number. */
#define DEVSTREAM_CUDA
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include <stdio.h>
#include <string.h>

int main(void) {
    for (int i = 0; i < DS_BACKEND_COUNT; i++) {
        ds_backend_info info;
        if (ds_backend_get_info(i, &info) != DS_OK)
            return 1;
        printf("%s: %s\n", info.name, info.reason);
        if (info.type != DS_DEVICE_CUDA)
            continue;
        if (strstr(info.reason, "not compiled in") != NULL)
            return 2;
        if (info.available) {
            if (info.device_count < 1)
                return 3;
        } else {
            const char *call = strstr(info.reason, "cuda");
            while (call != NULL && !(call[4] >= 'A' && call[4] <= 'Z'))
                call = strstr(call + 4, "cuda");
            if (call == NULL || strpbrk(call, "0123456789") == NULL)
                return 4;
        }
    }
    return ds_shutdown() == DS_OK ? 0 : 5;
}
