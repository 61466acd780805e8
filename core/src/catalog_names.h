// Names as people and programs write them, made comparable.
#pragma once

#include <string>
#include <string_view>

namespace ns_dist {

// Small letters and digits alone, without what is between words, and without words that name a vendor or
// a family of products: "NVIDIA A100-SXM4-80GB" and "a100-sxm4-80gb" are the same (nvidia-smi, rocm-smi, clouds).
// `between`: what stands between words.
std::string folded_name(std::string_view name, std::string_view between = "");

// The same of a model of the Hugging Face Hub, "meta-llama/Llama-3.1-8B-Instruct": without its owner, and without the
// words at its end that tell how it was trained further. Empty where `name` is no such name.
std::string folded_hub_name(std::string_view name);

}  // namespace ns_dist
