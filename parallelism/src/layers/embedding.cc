// Token and position embeddings, the table split over the vocabulary (Shoeybi et al. 2019, arXiv 1909.08053, s.3).
#include "layers/layers.h"

namespace ns_dist::layers {

void embedding_forward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  const std::int64_t elements = shape.sharded_tokens * shape.hidden;
  recorder.kernel("embedding", recorder.forward_category(),
                  Embedding{shape.tokens, shape.hidden, shape.vocabulary, Pass::kForward});
  recorder.leave_split_region("embedding");
  if (shape.model->position == PositionKind::kLearned) {
    recorder.kernel("embedding.position", recorder.forward_category(), Elementwise{"add", elements, 2, 1, 1});
  }
  if (shape.model->embedding_norm) {
    recorder.kernel("embedding.norm", recorder.forward_category(),
                    norm(shape, shape.sharded_tokens, shape.hidden, Pass::kForward));
  }
  if (shape.model->dropout) {
    recorder.kernel("embedding.dropout", recorder.forward_category(),
                    Elementwise{"dropout", elements, 1, 1 + 1 / shape.element, 2});
  }
}

void embedding_backward(Recorder& recorder) {
  const Shape& shape = recorder.shape();
  residual_branch_backward(recorder, "embedding");
  if (shape.model->embedding_norm) {
    recorder.kernel("embedding.norm.backward", Category::kBackward,
                    norm(shape, shape.sharded_tokens, shape.hidden, Pass::kBackward));
  }
  recorder.enter_split_region("embedding.backward");
  recorder.kernel("embedding.backward", Category::kBackward,
                  Embedding{shape.tokens, shape.hidden, shape.vocabulary, Pass::kBackward});
}

}  // namespace ns_dist::layers
