// The files of compute_model/weights/ that were compiled in.
#pragma once

#include <span>

#include "ns_dist/internal/embedded_file.h"

namespace ns_dist {

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> embedded_weights();

}  // namespace ns_dist
