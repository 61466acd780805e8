#include "step_analysis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

using ByCategory = std::array<double, kCategoryCount>;

// One run of a fragment: what its kernels wait for, and the chain of works that decides when it ends.
struct Reading {
  struct Piece {
    Category category = Category::kOther;
    double seconds = 0;
  };
  bool has_kernels = false;
  double first_kernel = 0, last_kernel = 0, end = 0;  // start of the first, end of the last; from the run's start
  std::vector<Piece> lead, tail;  // before the first kernel and behind the last, latest first; no kernels: all is tail
  ByCategory inner{};             // from the first kernel to the last
  std::vector<std::pair<std::uint32_t, double>> path;  // WorkId and seconds
};

// `spans` of the fragment's nodes, of which the run starts at `start`.
Reading read(const StepProgram& program, const Fragment& fragment, std::span<const NodeSpan> spans, double start) {
  constexpr std::size_t kNothing = ~std::size_t{0};
  std::vector<std::size_t> before(fragment.nodes.size(), kNothing);  // on the stream
  std::array<std::size_t, kStreamCount> last;
  last.fill(kNothing);
  for (std::size_t n = 0; n < before.size(); ++n) {
    before[n] = std::exchange(last[static_cast<std::size_t>(fragment.nodes[n].stream)], n);
  }
  // What ended last of all that the node waited for within the fragment.
  const auto waited_for = [&](std::size_t n) {
    std::size_t latest = before[n];
    const FragmentNode& node = fragment.nodes[n];
    for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
      const std::int32_t on = fragment.dependencies[node.first_dependency + d];
      if (on < 0) continue;
      const auto candidate = static_cast<std::size_t>(on);
      if (latest == kNothing || spans[candidate].end > spans[latest].end) latest = candidate;
    }
    return latest;
  };
  const auto category = [&](std::size_t n) { return program.works[index(fragment.nodes[n].work)].category; };
  const auto explain = [&](std::size_t node, double from, double to, auto add) {
    for (; node != kNothing && from < to; node = waited_for(node)) {
      const double begin = std::max(from, std::min(to, spans[node].start));
      add(category(node), to - begin);
      to = begin;
    }
  };

  Reading reading;
  std::size_t exit = kNothing;
  for (const std::int32_t node : fragment.exits) {
    if (node >= 0 && (exit == kNothing || spans[static_cast<std::size_t>(node)].end > spans[exit].end)) {
      exit = static_cast<std::size_t>(node);
    }
  }
  for (std::size_t n = 0; n < spans.size(); ++n) {
    if (exit == kNothing || spans[n].end > spans[exit].end) exit = n;
  }
  if (exit == kNothing) return reading;
  reading.end = spans[exit].end - start;

  std::size_t previous = kNothing;
  for (std::size_t n = 0; n < spans.size(); ++n) {
    if (fragment.nodes[n].stream != Stream::kCompute) continue;
    if (previous == kNothing) {
      reading.has_kernels = true;
      reading.first_kernel = spans[n].start - start;
      explain(waited_for(n), start, spans[n].start, [&](Category c, double seconds) {
        reading.lead.push_back({c, seconds});
      });
    } else if (spans[n].start > spans[previous].end) {
      explain(waited_for(n), spans[previous].end, spans[n].start,
              [&](Category c, double seconds) { reading.inner[static_cast<std::size_t>(c)] += seconds; });
    }
    reading.inner[static_cast<std::size_t>(category(n))] += spans[n].end - spans[n].start;
    previous = n;
  }
  reading.last_kernel = previous == kNothing ? 0 : spans[previous].end - start;
  explain(exit, start + reading.last_kernel, spans[exit].end, [&](Category c, double seconds) {
    reading.tail.push_back({c, seconds});
  });
  for (std::size_t node = exit; node != kNothing; node = waited_for(node)) {
    reading.path.emplace_back(index(fragment.nodes[node].work), spans[node].end - spans[node].start);
  }
  return reading;
}

class Analyzer {
 public:
  Analyzer(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, double step)
      : program_(program), costs_(costs), queue_(queue), history_(queue.history()), step_(step) {
    offsets_.push_back(0);
    for (const FoldedPeriod& period : history_.periods) {
      offsets_.push_back(offsets_.back() + static_cast<double>(period.copies) * period.length);
    }
    alone_.resize(costs.rows.size());
    for (auto& row : alone_) row.resize(program.fragments.size());
  }

  StepAnalysis run() {
    StepAnalysis analysis;
    for (std::uint32_t actor = 0; actor < program_.actors.size(); ++actor) account(actor);
    const auto stages = static_cast<double>(program_.actors.size());
    Breakdown& parts = analysis.breakdown;
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      part_of(parts, static_cast<Category>(c)) += Seconds::from_base(parts_[c] / stages);
    }
    parts.bubble = Seconds::from_base(bubble_ / stages);
    walk(analysis);
    return analysis;
  }

 private:
  static bool is_run(const StepRecord& record) { return record.lane % kStreamCount == 0; }
  bool is_message(const StepRecord& record) const {
    return std::holds_alternative<Message>(program_.works[record.what].work);
  }

  const FoldedPeriod* period_of(std::uint32_t id) const {
    for (const FoldedPeriod& period : history_.periods) {
      if (id >= period.first && id < period.end) return &period;
    }
    return nullptr;
  }
  static std::optional<std::size_t> place(const std::vector<std::uint32_t>& records, std::uint32_t id) {
    const auto found = std::find(records.begin(), records.end(), id);
    if (found == records.end()) return std::nullopt;
    return static_cast<std::size_t>(found - records.begin());
  }
  // The record under way at the beginning of a period that stands where `id` stands at its end, if any.
  std::uint32_t twin_before(std::uint32_t id) const {
    for (const FoldedPeriod& period : history_.periods) {
      if (const auto at = place(period.under_way_after, id)) return period.under_way[*at];
    }
    return kNoRecord;
  }

  // How many times the record began.
  double began(std::uint32_t id) const {
    const FoldedPeriod* period = period_of(id);
    return period == nullptr ? 1 : 1 + static_cast<double>(period->copies);
  }
  // How many times it went on as the record says.
  double went_on(std::uint32_t id) const {
    double times = began(id);
    for (const FoldedPeriod& period : history_.periods) {
      const auto copies = static_cast<double>(period.copies);
      if (place(period.under_way, id)) times += copies;
      if (place(period.under_way_after, id)) times -= copies;
    }
    return times;
  }

  const Reading& alone(const StepRecord& record) {
    auto& known = alone_[costs_.row_of_actor[record.actor]][record.what];
    if (!known) {
      const std::vector<NodeSpan>& spans = queue_.alone(record.actor, FragmentId{record.what});
      known = read(program_, program_.fragments[record.what], spans, 0);
    }
    return *known;
  }

  // Readings of open runs are made anew each time they are asked for: a run is asked for two or three times.
  Reading reading_of(const StepRecord& record) {
    if (record.spans == kNoRecord) return alone(record);
    const Fragment& fragment = program_.fragments[record.what];
    return read(program_, fragment, {history_.spans.data() + record.spans, fragment.nodes.size()}, record.start);
  }

  // ---- Breakdown ----

  // Accounts for [from, to), in which `actor` computes nothing because it waits for the end of record `id`. Goes back
  // along what each record waited for, while that happens on this stage. Times are of `frame`.
  void explain(std::uint32_t actor, std::uint32_t frame, std::uint32_t id, double from, double to, double weight) {
    while (id != kNoRecord && from < to) {
      const StepRecord& record = history_.records[id];
      const bool here = record.actor == actor;
      if (is_run(record)) {
        if (!here) break;
        if (record.times > 0) {
          const Reading reading = reading_of(record);
          for (const Reading::Piece& piece : reading.tail) {
            const double seconds = std::min(piece.seconds, to - from);
            parts_[static_cast<std::size_t>(piece.category)] += weight * seconds;
            to -= seconds;
          }
          if (reading.has_kernels) break;
        }
      } else {
        // A message belongs to both of its ends; any other work of another stage makes this one wait in a bubble.
        if (!here && !is_message(record)) break;
        const double start = record.start + offsets_[frame] - offsets_[record.frame];
        const double begin = std::max(from, std::min(to, start));
        parts_[static_cast<std::size_t>(program_.works[record.what].category)] += weight * (to - begin);
        to = begin;
        if (!here) break;
      }
      id = record.cause;
    }
    if (from < to) bubble_ += weight * (to - from);
  }

  // Accounts for what `actor` waited for from the end `from` of its last kernel to the first kernel of a run.
  void wait(std::uint32_t actor, const StepRecord& record, const Reading& reading, double from, double weight) {
    double to = record.start + reading.first_kernel;
    for (const Reading::Piece& piece : reading.lead) {
      const double seconds = std::min(piece.seconds, std::max(0.0, to - from));
      parts_[static_cast<std::size_t>(piece.category)] += weight * seconds;
      to -= seconds;
    }
    if (from < to) explain(actor, record.frame, record.cause, from, to, weight);
  }

  // When the last kernel of the actor's last run in the period ended, as of `frame`.
  double last_computed(std::uint32_t actor, const FoldedPeriod& period, std::uint32_t frame) {
    const std::vector<std::uint32_t>& records = history_.by_actor[actor];
    for (auto id = std::lower_bound(records.begin(), records.end(), period.end); id != records.begin();) {
      const StepRecord& record = history_.records[*--id];
      if (!is_run(record) || record.times == 0) continue;
      const Reading reading = reading_of(record);
      if (!reading.has_kernels) continue;
      return record.end - (reading.end - reading.last_kernel) + offsets_[frame] - offsets_[record.frame];
    }
    return 0;
  }

  void account(std::uint32_t actor) {
    double computed = 0, busy = 0;
    std::uint32_t frame = 0, last = kNoRecord, before = 0;
    const auto final_frame = static_cast<std::uint32_t>(history_.periods.size());
    for (const std::uint32_t id : history_.by_actor[actor]) {
      const StepRecord& record = history_.records[id];
      if (is_run(record) || !is_message(record)) {
        const double end = record.end + offsets_[final_frame] - offsets_[record.frame];
        if (last == kNoRecord || end >= busy) {
          busy = end;
          last = id;
        }
      }
      if (!is_run(record) || record.times == 0) continue;
      const Reading reading = reading_of(record);
      if (!reading.has_kernels) continue;
      const double copies = began(id), inside = went_on(id);
      const double from = computed + offsets_[record.frame] - offsets_[frame];
      // The first run of a folded period follows what was before the period; in the copies it follows the last run of
      // the copy before.
      const FoldedPeriod* period = period_of(id);
      const std::uint32_t twin = twin_before(id);
      if (twin != kNoRecord) {
        // In the copies it went on as the run that was under way when the period began.
        wait(actor, record, reading_of(history_.records[twin]), from, copies - 1);
        wait(actor, record, reading, from, 1);
      } else if (period != nullptr && before < period->first && !place(period->under_way, before)) {
        wait(actor, record, reading, from, 1);
        wait(actor, record, reading, last_computed(actor, *period, record.frame) - period->length, copies - 1);
      } else {
        wait(actor, record, reading, from, copies);
      }
      before = id;
      const double again = record.times - 1;
      for (std::size_t c = 0; c < kCategoryCount; ++c) parts_[c] += inside * record.times * reading.inner[c];
      for (const auto* pieces : {&reading.lead, &reading.tail}) {
        for (const Reading::Piece& piece : *pieces) {
          parts_[static_cast<std::size_t>(piece.category)] += inside * again * piece.seconds;
        }
      }
      computed = record.end - (reading.end - reading.last_kernel);
      frame = record.frame;
    }
    computed += offsets_[final_frame] - offsets_[frame];
    if (last != kNoRecord) explain(actor, final_frame, last, computed, busy, 1);
    bubble_ += step_ - std::max(computed, busy);
  }

  // ---- Critical path ----

  void add(std::uint32_t row, std::uint32_t work, std::int64_t count, double seconds) {
    PathWork& entry = path_[{row, work}];
    entry.row = row;
    entry.work = WorkId{work};
    entry.count += count;
    entry.seconds += Seconds::from_base(seconds);
  }

  void walk(StepAnalysis& analysis) {
    std::uint32_t at = kNoRecord;
    double latest = 0;
    for (std::uint32_t id = 0; id < history_.records.size(); ++id) {
      const StepRecord& record = history_.records[id];
      const double end = record.end + offsets_.back() - offsets_[record.frame];
      if (at == kNoRecord || end > latest) {
        at = id;
        latest = end;
      }
    }
    std::vector<std::int64_t> copies;
    for (const FoldedPeriod& period : history_.periods) copies.push_back(period.copies);
    std::vector<std::vector<std::int64_t>> closed(costs_.rows.size(),
                                                  std::vector<std::int64_t>(program_.fragments.size(), 0));
    for (std::uint32_t how = at; at != kNoRecord;) {
      const StepRecord& record = history_.records[how];
      const std::uint32_t row = costs_.row_of_actor[record.actor];
      if (!is_run(record)) {
        add(row, record.what, 1, record.end - record.start);
      } else if (record.times > 0 && record.spans == kNoRecord) {
        closed[row][record.what] += record.times;
      } else if (record.times > 0) {
        for (const auto& [work, seconds] : reading_of(record).path) add(row, work, 1, seconds);
      }
      const std::uint32_t cause = history_.records[at].cause;
      how = before(at, cause, copies, at);
    }
    for (std::uint32_t row = 0; row < closed.size(); ++row) {
      for (std::uint32_t fragment = 0; fragment < closed[row].size(); ++fragment) {
        const std::int64_t times = closed[row][fragment];
        if (times == 0) continue;
        for (const auto& [work, seconds] : alone_of(row, fragment).path) {
          add(row, work, times, static_cast<double>(times) * seconds);
        }
      }
    }
    for (const auto& [key, entry] : path_) {
      analysis.path.push_back(entry);
      analysis.path_length += entry.seconds;
    }
  }

  const Reading& alone_of(std::uint32_t row, std::uint32_t fragment) {
    auto& known = alone_[row][fragment];
    if (!known) {
      std::uint32_t actor = 0;
      while (costs_.row_of_actor[actor] != row) ++actor;
      known = read(program_, program_.fragments[fragment], queue_.alone(actor, FragmentId{fragment}), 0);
    }
    return *known;
  }

  // Goes from record `at` to what it waited for. Where that lies before a folded period, and copies of the period are
  // left, it is what stands at the same place one period later. Returns the record that tells how it went on.
  std::uint32_t before(std::uint32_t from, std::uint32_t cause, std::vector<std::int64_t>& copies, std::uint32_t& at) {
    std::uint32_t how = at = cause;
    for (std::size_t p = copies.size(); at != kNoRecord && p-- > 0;) {
      const FoldedPeriod& period = history_.periods[p];
      while (from >= period.first && at < period.first && copies[p] > 0) {
        --copies[p];
        const StepRecord& record = history_.records[at];
        const auto& records = history_.by_actor[record.actor];
        const std::size_t later = record.sequence + std::size_t{period.records_of_actor[record.actor]};
        if (later >= records.size() || later == record.sequence) {
          copies[p] = 0;
          break;
        }
        const std::uint32_t twin = records[later];
        const auto same = place(period.under_way, at);
        if (!same || period.under_way_after[*same] != twin) how = twin;
        at = twin;
      }
    }
    return how;
  }

  const StepProgram& program_;
  const ProgramCosts& costs_;
  ProgramQueue& queue_;
  const StepHistory& history_;
  double step_;
  std::vector<double> offsets_;  // by frame
  std::vector<std::vector<std::optional<Reading>>> alone_;
  ByCategory parts_{};
  double bubble_ = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, PathWork> path_;  // by row and work
};

}  // namespace

StepAnalysis analyze(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, Seconds step) {
  return Analyzer(program, costs, queue, step.in_base()).run();
}

std::optional<AnalyzedStep> run_and_analyze(const StepProgram& program, const ProgramCosts& costs,
                                            ProgramQueue::Options options) {
  constexpr double kRounding = 1e-9;
  options.record = true;
  ProgramQueue queue(program, costs, options);
  const std::optional<double> seconds = queue.run();
  if (!seconds) return std::nullopt;
  AnalyzedStep result;
  result.step = *seconds * units::s;
  for (const FoldedPeriod& period : queue.history().periods) {
    if (period.copies > result.folding.copies) result.folding = {period.microbatches, period.copies};
  }
  result.analysis = analyze(program, costs, queue, result.step);
  const auto sums = [&](Seconds parts) { return std::abs((parts - result.step).in_base()) <= kRounding * *seconds; };
  if (options.fold && !(sums(result.analysis.path_length) && sums(result.analysis.breakdown.total()))) {
    options.fold = false;
    if (auto unfolded = run_and_analyze(program, costs, options)) result.analysis = std::move(unfolded->analysis);
  }
  return result;
}

}  // namespace ns_dist
