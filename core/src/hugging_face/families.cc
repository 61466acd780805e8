// All families that are known, file by file.
#include <vector>

#include "family.h"

namespace ns_dist::hugging_face {

std::span<const Family> families() {
  static const std::vector<Family> kAll = [] {
    std::vector<Family> all;
    for (const auto group : {gpt_families(), encoder_families(), dense_families(), gemma_families(), expert_families(),
                             latent_attention_families(), hybrid_families()}) {
      all.insert(all.end(), group.begin(), group.end());
    }
    return all;
  }();
  return kAll;
}

}  // namespace ns_dist::hugging_face
