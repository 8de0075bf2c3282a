#include "feature/learned_rows.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "common/rng.h"

namespace gld {
namespace {

template <typename Body>
void dispatch_float(const Tensor& tensor, const char* name, Body&& body) {
  if (tensor.dtype == kFloat32) return body(float{});
  if (tensor.dtype == kFloat64) return body(double{});
  throw InvalidArgument(message(name, ": expected dtype float32 or float64, got ", to_string(tensor.dtype)));
}

void check_rows(const Tensor& ids, const Tensor& rows, const char* name) {
  check_int64_vector(ids, ids.numel(), "ids");
  if (rows.shape.size() != 2 || rows.shape[0] != ids.numel())
    throw InvalidArgument(message(name, ": expected a matrix with a row for each of ", ids.numel(), " ids"));
}

void check_like(const Tensor& table, const Tensor& state, const char* name) {
  if (state.shape != table.shape || state.dtype != table.dtype)
    throw InvalidArgument(message(name, ": expected the shape and dtype of the table"));
}

void check_step(const Tensor& table, const Tensor& at, const Tensor& grads) {
  check_rows(at, grads, "grads");
  if (table.shape.size() != 2 || table.shape[1] != grads.shape[1] || table.dtype != grads.dtype)
    throw InvalidArgument("grads: expected rows of the table's width and dtype");
  for (int64_t i = 0; i < at.numel(); ++i) {
    const int64_t row = at.as<int64_t>()[i];
    if (row < 0 || row >= table.shape[0])
      throw UnknownId(message("at: expected rows of a table of ", table.shape[0], ", got ", row));
  }
}

// Uniform in (0, 1): the 53 bits of a double, moved by half a step, so that its logarithm is finite.
double unit(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

double first_value(const NodeStream& draws, int64_t column, FirstRows kind) {
  if (kind == FirstRows::kUniform) return 2 * unit(draws.bits(column)) - 1;
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(unit(draws.bits(2 * column))));
  return radius * std::cos(kTwoPi * unit(draws.bits(2 * column + 1)));
}

// Rows are strewn over memory that no cache holds: those to come are asked for while one is worked on.
constexpr int64_t kAhead = 8;

template <typename T>
void prefetch_row(const T* row, int64_t dim) {
  for (int64_t c = 0; c < dim; c += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + c, 1);
}

// Calls body(first value in the table, first value in the gradients) for each row.
template <typename T, typename Body>
void each_row(const Tensor& at, int64_t dim, std::initializer_list<const T*> tables, Body&& body) {
  const int64_t* rows = at.as<int64_t>();
  const int64_t count = at.numel();
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count)
      for (const T* table : tables) prefetch_row(table + rows[i + kAhead] * dim, dim);
    body(rows[i] * dim, i * dim);
  }
}

}  // namespace

void first_rows(const Tensor& ids, uint64_t key, FirstRows kind, double scale, const Tensor& rows) {
  check_rows(ids, rows, "rows");
  dispatch_float(rows, "rows", [&](auto zero) {
    using T = decltype(zero);
    const int64_t dim = rows.shape[1];
    T* out = rows.as<T>();
    if (kind == FirstRows::kZeros) return void(std::fill_n(out, rows.numel(), T{0}));
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const NodeStream draws(key, ids.as<int64_t>()[i]);
      for (int64_t c = 0; c < dim; ++c) *out++ = static_cast<T>(scale * first_value(draws, c, kind));
    }
  });
}

std::pair<Tensor, Tensor> sum_by_id(const Tensor& ids, const Tensor& rows) {
  check_rows(ids, rows, "rows");
  std::vector<std::pair<int64_t, int64_t>> order(ids.numel());  // id and place: those of one id stay in their order
  for (size_t i = 0; i < order.size(); ++i) order[i] = {ids.as<int64_t>()[i], static_cast<int64_t>(i)};
  std::sort(order.begin(), order.end());
  int64_t count = 0;
  for (size_t i = 0; i < order.size(); ++i) count += i == 0 || order[i].first != order[i - 1].first;
  const int64_t dim = rows.shape[1];
  Tensor distinct = empty({count}, kInt64), sums = empty({count, dim}, rows.dtype);
  dispatch_float(rows, "rows", [&](auto zero) {
    using T = decltype(zero);
    int64_t last = -1;
    for (size_t i = 0; i < order.size(); ++i) {
      if (i + kAhead < order.size()) prefetch_row(rows.as<T>() + order[i + kAhead].second * dim, dim);
      const auto [id, place] = order[i];
      const T* row = rows.as<T>() + place * dim;
      if (i == 0 || id != order[i - 1].first) {
        distinct.as<int64_t>()[++last] = id;
        std::copy_n(row, dim, sums.as<T>() + last * dim);
      } else {
        T* sum = sums.as<T>() + last * dim;
        for (int64_t c = 0; c < dim; ++c) sum[c] += row[c];
      }
    }
  });
  return {std::move(distinct), std::move(sums)};
}

void sgd_step(const Tensor& table, const Tensor& at, const Tensor& grads, double rate) {
  check_step(table, at, grads);
  dispatch_float(table, "table", [&](auto zero) {
    using T = decltype(zero);
    T* rows = table.as<T>();
    const T* grad = grads.as<T>();
    const T by = static_cast<T>(rate);
    const int64_t dim = table.shape[1];
    each_row<T>(at, dim, {rows}, [=](int64_t to, int64_t from) {
      T* __restrict row = rows + to;
      const T* __restrict g = grad + from;
      for (int64_t c = 0; c < dim; ++c) row[c] -= by * g[c];
    });
  });
}

void adagrad_step(const Tensor& table, const Tensor& sums, const Tensor& at, const Tensor& grads, double rate,
                  double eps) {
  check_step(table, at, grads);
  check_like(table, sums, "sums");
  dispatch_float(table, "table", [&](auto zero) {
    using T = decltype(zero);
    T *rows = table.as<T>(), *sum = sums.as<T>();
    const T* grad = grads.as<T>();
    const T by = static_cast<T>(rate), least = static_cast<T>(eps);
    const int64_t dim = table.shape[1];
    each_row<T>(at, dim, {rows, sum}, [=](int64_t to, int64_t from) {
      T* __restrict row = rows + to, * __restrict total = sum + to;
      const T* __restrict g = grad + from;
      for (int64_t c = 0; c < dim; ++c) {
        total[c] += g[c] * g[c];
        row[c] -= by * g[c] / (std::sqrt(total[c]) + least);
      }
    });
  });
}

void adam_step(const Tensor& table, const Tensor& means, const Tensor& squares, const Tensor& at, const Tensor& grads,
               const AdamSettings& settings) {
  check_step(table, at, grads);
  check_like(table, means, "means");
  check_like(table, squares, "squares");
  const double passed = static_cast<double>(settings.step);
  const double rate =
      settings.rate * std::sqrt(1 - std::pow(settings.beta2, passed)) / (1 - std::pow(settings.beta1, passed));
  dispatch_float(table, "table", [&](auto zero) {
    using T = decltype(zero);
    T *rows = table.as<T>(), *mean = means.as<T>(), *square = squares.as<T>();
    const T* grad = grads.as<T>();
    const T by = static_cast<T>(rate), least = static_cast<T>(settings.eps);
    const T new1 = static_cast<T>(1 - settings.beta1), new2 = static_cast<T>(1 - settings.beta2);
    const int64_t dim = table.shape[1];
    each_row<T>(at, dim, {rows, mean, square}, [=](int64_t to, int64_t from) {
      T* __restrict row = rows + to, * __restrict m = mean + to, * __restrict v = square + to;
      const T* __restrict g = grad + from;
      for (int64_t c = 0; c < dim; ++c) {
        m[c] += (g[c] - m[c]) * new1;
        v[c] += (g[c] * g[c] - v[c]) * new2;
        row[c] -= by * m[c] / (std::sqrt(v[c]) + least);
      }
    });
  });
}

}  // namespace gld
