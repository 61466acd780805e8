#include "neusight/fusion.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace ns_dist {
namespace {

// Wider rows do not stay in a block's registers: Inductor's reductions loop over them and read them again, mostly from
// cache (its persistent_reduction threshold for inner reductions; a row of 4-16 KB is found in L1 or L2).
constexpr double kPersistentColumns = 1024, kLoopedReads = 1.15;

struct Shape {
  double elements = 0;  // 0: not fusible
  double flops = 0;     // an element
  double rereads = 1;
};

Shape shape_of(const Operator& op) {
  if (const auto* o = std::get_if<Elementwise>(&op.kind)) {
    return {static_cast<double>(o->elements), o->flops_per_element, 1};
  }
  const auto rows = [&](std::int64_t count, std::int64_t columns) {
    const double elements = static_cast<double>(count) * static_cast<double>(columns);
    return Shape{elements, work_of(op).flops / units::FLOP / elements,
                 static_cast<double>(columns) > kPersistentColumns ? kLoopedReads : 1};
  };
  if (const auto* o = std::get_if<Softmax>(&op.kind); o != nullptr && o->pass == Pass::kForward) {
    return rows(o->rows, o->columns);
  }
  if (const auto* o = std::get_if<Normalization>(&op.kind); o != nullptr && o->pass == Pass::kForward) {
    return rows(o->rows, o->columns);
  }
  return {};
}

double elements_written(const Operator& op) { return work_of(op).written / size_of(op.dtype); }

Error bad(std::size_t step, std::string message, std::string expected) {
  Error error;
  error.message = "step " + std::to_string(step) + std::move(message);
  error.expected = std::move(expected);
  return error;
}

}  // namespace

Result<std::vector<FusedKernel>> fuse(std::span<const FusionStep> steps) {
  std::vector<Shape> shapes;
  std::vector<std::size_t> group(steps.size()), stage(steps.size(), 0);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const FusionStep& step = steps[i];
    if (auto valid = validate(step.op); !valid) return fail(std::move(valid).error());
    if (!(step.outside >= 0) || !std::isfinite(step.outside)) {
      return fail(bad(i, " reads an unusable number of elements from outside", "a finite number of at least 0"));
    }
    shapes.push_back(shape_of(step.op));
    const bool fusible = shapes[i].elements > 0;
    group[i] = i;
    // Kernels between two steps raise the stage: only steps of one stage can run as one kernel.
    const auto joins = [&](std::size_t from) {
      return fusible && shapes[from].elements == shapes[i].elements && steps[from].op.dtype == step.op.dtype;
    };
    for (const std::size_t from : step.from) {
      if (from >= i) return fail(bad(i, " reads step " + std::to_string(from), "steps before it"));
      stage[i] = std::max(stage[i], stage[from] + (joins(from) ? 0 : 1));
    }
    for (const std::size_t from : step.from) {
      if (!joins(from) || stage[from] != stage[i]) continue;
      const std::size_t old = group[i], taken = group[from];
      for (std::size_t j = 0; j <= i; ++j) {
        if (group[j] == old) group[j] = taken;
      }
    }
  }

  std::vector<std::vector<std::size_t>> readers(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const std::size_t from : steps[i].from) readers[from].push_back(i);
  }
  std::vector<FusedKernel> kernels;
  for (std::size_t last = 0; last < steps.size(); ++last) {
    FusedKernel kernel;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (group[i] == group[last]) kernel.steps.push_back(i);
    }
    if (kernel.steps.back() != last) continue;
    kernel.op = steps[last].op;
    if (kernel.steps.size() > 1) {
      Elementwise fused;
      fused.name = "fused";
      const double elements = shapes[last].elements;
      fused.elements = static_cast<std::int64_t>(std::min(elements, 9e18));
      fused.inputs = fused.outputs = fused.flops_per_element = 0;
      double rereads = 1;
      std::set<std::size_t> read;
      for (const std::size_t i : kernel.steps) {
        fused.inputs += steps[i].outside / elements;
        fused.flops_per_element += shapes[i].flops;
        rereads = std::max(rereads, shapes[i].rereads);
        for (const std::size_t from : steps[i].from) {
          if (group[from] != group[last] && read.insert(from).second) {
            fused.inputs += elements_written(steps[from].op) / elements;
          }
        }
        const bool wanted = steps[i].kept || readers[i].empty() ||
                            std::any_of(readers[i].begin(), readers[i].end(),
                                        [&](std::size_t reader) { return group[reader] != group[last]; });
        if (wanted) fused.outputs += elements_written(steps[i].op) / elements;
      }
      fused.inputs *= rereads;
      kernel.op = {fused, steps[last].op.dtype};
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace ns_dist
