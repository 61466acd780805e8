// Who answers for an operator that has a predictor: the sources of a correction, tried in order.
#pragma once

#include <string_view>

#include "reference_gpu.h"
#include "weights.h"

namespace ns_dist {

// What a source sees.
struct Case {
  const PredictorWeights& weights;
  Predictor predictor;
  const Operator& op;
  Mode mode;
  // Of `op` on the machine. Where only bursts were measured, those of a burst, which may have found its operands in L2:
  // it is forecast, and the slowdown of long runs is applied to that.
  const Features& features;
  const ReferenceGpu& reference;
  std::size_t kernel_class;
  bool only_bursts = false;  // only_in_bursts()
};

// Whether products of the GPU that answers for this one were measured, but not of this class: in bursts alone.
bool only_in_bursts(const PredictorWeights& weights, Predictor predictor, const ReferenceGpu& reference,
                    std::size_t kernel_class);

struct Source {
  std::string_view name;
  bool (*applies)(const Case&);
  void (*prepare)(const Case&, PendingCorrection&);
  std::string_view (*method)(const Case&);
};

const Source& source_for(const Case& one);

}  // namespace ns_dist
