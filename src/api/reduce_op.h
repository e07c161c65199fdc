/* api/reduce_op.h - reduction operators.

   Declares the operators of reductions (ds_reduce_op), with NCCL's numbers. */
#ifndef DS__API_REDUCE_OP_H
#define DS__API_REDUCE_OP_H

/* ---- reductions ------------------------------------------------------------------------------ */

/** Operators of reductions; the values are NCCL's. */
typedef enum ds_reduce_op {
    DS_REDUCE_SUM = 0,     /**< sum; bool: logical or */
    DS_REDUCE_PRODUCT = 1, /**< product; bool: logical and */
    /** maximum; NaN if an operand is NaN; complex numbers are not supported */
    DS_REDUCE_MAX = 2,
    /** minimum; NaN if an operand is NaN; complex numbers are not supported */
    DS_REDUCE_MIN = 3,
    /** sum divided by the number of tensors; integers round towards zero; bool is not supported */
    DS_REDUCE_AVERAGE = 4
} ds_reduce_op;

#endif
