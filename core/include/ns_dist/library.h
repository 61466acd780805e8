// The library whose kernel computes an operator.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "ns_dist/names.h"

namespace ns_dist {

// Who wrote a kernel that several libraries offer. `kDefault`: what training frameworks call on that GPU. `kServing`:
// what inference frameworks call (of attention FlashAttention-2 on Ampere and Ada, FlashAttention-3 on Hopper,
// TensorRT-LLM's on Blackwell). `kFlash1`: FlashAttention of 2022, in CUDA or Triton. `kCompiled`: torch.compile.
// `kEager`: PyTorch, one kernel for each step of the formula. `kLiger`: Liger-Kernel, of cross-entropy alone. Those of
// normalization come first, then those of attention.
enum class Library { kDefault, kServing, kCudnn, kEager, kCompiled, kFlash2, kFlash3, kFlash1, kLiger };
template <>
inline constexpr auto kEnumeratorNames<Library> = std::to_array<std::string_view>({"default", "serving", "cudnn",
                                                                                   "eager", "compiled", "flash-2",
                                                                                   "flash-3", "flash-1", "liger"});
constexpr std::span<const std::string_view> attention_libraries() { return names_of<Library>().first(8); }
// Of softmax. "default": with scale and causal mask in one kernel (Megatron's scaled masked softmax).
inline constexpr std::array<std::string_view, 2> kSoftmaxLibraries = {"default", "eager"};
// Those whose attention stores no scores.
inline constexpr std::array<std::string_view, 6> kFusedAttentionLibraries = {"default", "serving", "cudnn",
                                                                             "flash-2", "flash-3", "flash-1"};
constexpr std::span<const std::string_view> normalization_libraries() { return names_of<Library>().first(5); }
// Of cross-entropy. "flash-2": the kernel that comes with FlashAttention (csrc/xentropy, from NVIDIA's Apex). "liger":
// logits of a part of the tokens at a time, which its kernel turns into their gradient (Liger-Kernel,
// ops/fused_linear_cross_entropy.py), so that they are never there as a whole.
inline constexpr std::array<std::string_view, 4> kLossLibraries = {"default", "flash-2", "liger", "eager"};
constexpr std::span<const std::string_view> fused_loss_libraries() { return std::span(kLossLibraries).first(3); }

}  // namespace ns_dist
