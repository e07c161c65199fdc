/* core/inline.h - inline functions of devstream.h as functions.

   Makes the inline functions of the public rooms external by a declaration without `inline`, so
   that other languages and dlsym find them. core/dtype.h has those of data types,
   tensor/tensor.h those of tensors.

   Invariants: every DSINLINE function of the public rooms is declared without `inline` once.
   Locks: none.
   Threads: any. */
#ifndef DS__CORE_INLINE_H
#define DS__CORE_INLINE_H

#include "../api/stream.h"

DS__SYMBOL(ds_device ds_cpu(int index))
DS__SYMBOL(ds_device ds_cuda(int index))
DS__SYMBOL(ds_device ds_device_current(void))
DS__SYMBOL(uintptr_t ds_handle_to_number(uint64_t id))
DS__SYMBOL(uint64_t ds_handle_from_number(uintptr_t number))
DS__SYMBOL(ds_stream_desc ds_stream_desc_torch(void))
DS__SYMBOL(ds_stream_desc ds_stream_desc_paddle(void))
DS__SYMBOL(ds_stream_desc ds_stream_desc_cuda(void))
DS__SYMBOL(ds_stream_desc ds_stream_desc_cupy(void))
DS__SYMBOL(ds_stream_desc ds_stream_desc_mindspore(void))

#endif
