// Rows that are learned: their first values, sums of their gradients, and the steps of optimizers.
//
// Tables are [n, dim] of float32 or float64, and all tensors of one call have the same dtype. Every result is a
// function of the arguments alone, in a stated order of additions. Who calls a step sees to it that nobody reads the
// rows.
#pragma once
#include <cstdint>
#include <utility>

#include "common/tensor.h"

namespace gld {

enum class FirstRows { kZeros = 0, kUniform = 1, kNormal = 2 };

// rows[i] = the first values of the row of ids[i]: a function of (key, ids[i], column). Uniform in [-scale, scale), or
// normal with this standard deviation (Box and Muller, 1958).
void first_rows(const Tensor& ids, uint64_t key, FirstRows kind, double scale, const Tensor& rows);

// The distinct ids, ascending, and the sum of the rows of each, added up in the order in which they stand.
std::pair<Tensor, Tensor> sum_by_id(const Tensor& ids, const Tensor& rows);

// One step for the rows `at` (int64, distinct) with the gradients grads[i]. An entry of `at` outside the table throws
// UnknownId before anything is written. The definitions are those of torch.optim.SGD, Adagrad and SparseAdam.
void sgd_step(const Tensor& table, const Tensor& at, const Tensor& grads, double rate);
void adagrad_step(const Tensor& table, const Tensor& sums, const Tensor& at, const Tensor& grads, double rate,
                  double eps);

struct AdamSettings {
  double rate, beta1, beta2, eps;
  int64_t step;  // from 1
};
void adam_step(const Tensor& table, const Tensor& means, const Tensor& squares, const Tensor& at, const Tensor& grads,
               const AdamSettings& settings);

}  // namespace gld
