// The files of configs/ that were compiled in, so that the binary works alone in an empty directory.
#pragma once

#include <span>

#include "ns_dist/internal/embedded_file.h"

namespace ns_dist {

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> embedded_files();

}  // namespace ns_dist
