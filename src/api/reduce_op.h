/* api/reduce_op.h - reduction operators.

   Declares the operators of reductions (ds_reduce_op), with NCCL's numbers. */
#ifndef DS__API_REDUCE_OP_H
#define DS__API_REDUCE_OP_H

/* ---- reductions ------------------------------------------------------------------------------ */

/** How elements are put together; the numbers are NCCL's. */
typedef enum ds_reduce_op {
    DS_REDUCE_SUM = 0,     /**< bool: or */
    DS_REDUCE_PRODUCT = 1, /**< bool: and */
    DS_REDUCE_MAX = 2,     /**< NaN if one of them is; not of complex numbers */
    DS_REDUCE_MIN = 3,     /**< the same */
    /** the sum divided by the number of tensors; not of bool; integers: towards zero */
    DS_REDUCE_AVERAGE = 4
} ds_reduce_op;

#endif
