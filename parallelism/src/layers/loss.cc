// Final norm, logits and cross-entropy over a vocabulary split across ranks (Shoeybi et al. 2019, s.3: only a few
// numbers a token are exchanged, never the logits).
#include "layers/layers.h"

namespace ns_dist::layers {
namespace {

Linear output_layer(const Shape& shape) { return {"loss.logits", shape.hidden, shape.vocabulary, false}; }

}  // namespace

void loss_forward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  recorder.kernel("loss.norm", recorder.forward_category(),
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kForward));
  recorder.enter_split_region("loss");
  recorder.forward(output_layer(shape), shape.tokens, Epilogue::kNone);
  recorder.kernel("loss.cross_entropy", recorder.forward_category(),
                  CrossEntropy{shape.tokens, shape.vocabulary, Pass::kForward});
  // Row maximum, target logit and sum of exponentials, fp32, each token.
  const Bytes row_values = static_cast<double>(shape.tokens) * size_of(DType::kFp32);
  for (const char* name : {"loss.max.all_reduce", "loss.target.all_reduce", "loss.sum.all_reduce"}) {
    recorder.tensor_parallel(name, CollectiveKind::kAllReduce, row_values);
  }
}

void loss_backward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  recorder.kernel("loss.cross_entropy.backward", Category::kBackward,
                  CrossEntropy{shape.tokens, shape.vocabulary, Pass::kBackward});
  recorder.column_parallel_backward(output_layer(shape));
  recorder.kernel("loss.norm.backward", Category::kBackward,
                  norm(shape, shape.sharded_tokens, shape.hidden, Pass::kBackward));
}

}  // namespace ns_dist::layers
