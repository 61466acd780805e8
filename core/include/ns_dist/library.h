// Whose kernel computes an operator.
#pragma once

#include <array>
#include <string_view>

#include "ns_dist/names.h"

namespace ns_dist {

// Who wrote a kernel that several libraries offer. `kDefault`: what training frameworks call on that GPU. `kServing`:
// what inference frameworks call (of attention FlashAttention-2 on Ampere and Ada, FlashAttention-3 on Hopper,
// TensorRT-LLM's on Blackwell). `kCompiled`: torch.compile. `kEager`: PyTorch, one kernel for each step of the formula.
enum class Library { kDefault, kCudnn, kFlash2, kFlash3, kServing, kCompiled, kEager };
template <>
inline constexpr std::array<std::string_view, 7> kEnumeratorNames<Library> = {
    "default", "cudnn", "flash-2", "flash-3", "serving", "compiled", "eager"};

}  // namespace ns_dist
