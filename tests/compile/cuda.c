/* With CUDA compiled in: when it cannot be used, the report says why. */
#define DEVSTREAM_CUDA
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include <stdio.h>
#include <string.h>

int main(void) {
    for (int i = 0; i < DS_BACKEND_COUNT; i++) {
        ds_backend_info info;
        if (ds_backend_get(i, &info) != DS_OK) return 1;
        printf("%s: %s\n", info.name, info.reason);
        if (info.type != DS_DEVICE_CUDA) continue;
        if (!info.available && info.reason[0] == 0) return 2;
        if (strstr(info.reason, "not compiled in") != NULL) return 3;
    }
    return 0;
}
