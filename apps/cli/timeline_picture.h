// The timeline of a step as a picture for a page.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ns_dist/outline.h"
#include "ns_dist/units.h"

namespace ns_dist::cli {

// Which of `stages` are shown where there are too many: spread evenly, with the first, the last and `must`.
std::vector<std::size_t> shown_stages(std::size_t stages, std::size_t must = 0);

// Into how many pieces at most an outline for the picture of so many stages is to be divided.
std::size_t picture_pieces(std::size_t stages);

// The distance of the ticks of an axis: 1, 2 or 5 times a power of ten, at least `least`.
double round_step(double least);
std::string tick_text(Seconds at);  // "7 s", "7.25 s"

// Legend, SVG and caption. Time runs to the right, a row is a stage; in a row, the area of a color is its time.
std::string timeline_picture(const StepOutline& outline, Seconds step, std::int64_t microbatches);

}  // namespace ns_dist::cli
