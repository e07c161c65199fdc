/* base/device_code.h - device code. */
#ifndef DS__BASE_DEVICE_CODE_H
#define DS__BASE_DEVICE_CODE_H

#ifndef DS__DEVICE
#include <stdint.h>
#include <string.h>
#define DS__DEVICE static inline
#define DS__CONSTANT static const
#endif

#endif
