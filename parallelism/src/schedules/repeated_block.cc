#include "repeated_block.h"

#include <algorithm>

namespace ns_dist::schedules {

PassList repeat_block(std::span<const BlockPass> block, std::int64_t microbatches) {
  std::vector<std::int64_t> borders;  // repetitions before which a pass begins or ends
  for (const BlockPass& pass : block) {
    borders.push_back(pass.lag);
    borders.push_back(pass.lag + microbatches);
  }
  std::sort(borders.begin(), borders.end());
  PassList list;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    PassLoop loop{{}, borders[i + 1] - borders[i], 1};
    if (loop.repeats == 0) continue;
    for (const BlockPass& pass : block) {
      const std::int64_t microbatch = borders[i] - pass.lag;
      if (microbatch < 0 || microbatch >= microbatches) continue;
      loop.passes.push_back({pass.kind, static_cast<std::int32_t>(microbatch), pass.chunk, false});
    }
    if (!loop.passes.empty()) list.push_back(std::move(loop));
  }
  return list;
}

PassLoop run_of(PassKind kind, std::int32_t chunk, std::int64_t first, std::int64_t count, std::int32_t shift) {
  return {{{kind, static_cast<std::int32_t>(first), chunk, false}}, count, shift};
}

void append(PassList& list, std::span<const SchedulePass> passes) {
  if (!list.empty() && list.back().shift == 1) {
    PassLoop& last = list.back();
    const auto repeats = static_cast<std::int32_t>(last.repeats);
    const bool continues = std::equal(last.passes.begin(), last.passes.end(), passes.begin(), passes.end(),
                                      [repeats](SchedulePass before, const SchedulePass& next) {
                                        before.microbatch += repeats;
                                        return before == next;
                                      });
    if (continues) {
      ++last.repeats;
      return;
    }
  }
  list.push_back({{passes.begin(), passes.end()}, 1, 1});
}

PassList first_microbatches(const PassList& list, std::int64_t count) {
  PassList result;
  for (const SchedulePass& pass : flatten(list)) {
    if (pass.microbatch < count) append(result, {pass});
  }
  return result;
}

}  // namespace ns_dist::schedules
