#include "step_analysis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "ns_dist/result.h"

namespace ns_dist {
namespace {

using ByCategory = std::array<double, kCategoryCount>;

// What a stage did in some time.
struct Parts {
  ByCategory by{};
  double bubble = 0;
  double total() const { return std::accumulate(by.begin(), by.end(), bubble); }
  double of(Category category) const { return by[static_cast<std::size_t>(category)]; }
  double& operator[](Category category) { return by[static_cast<std::size_t>(category)]; }
  void add(const Parts& more, double times) {
    for (std::size_t c = 0; c < kCategoryCount; ++c) by[c] += times * more.by[c];
    bubble += times * more.bubble;
  }
};

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

// One stage of an outline, put together in order of time.
class StageDrawing {
 public:
  // Pieces shorter than `shortest` join the next.
  explicit StageDrawing(double shortest) : shortest_(shortest) {}

  // `waits`: latest first. Waiting for collectives of its own layers belongs to the run that waits.
  void wait(const std::vector<Parts>& waits) {
    for (auto part = waits.rbegin(); part != waits.rend(); ++part) {
      const Kind kind = part->bubble > 0                            ? Kind::kIdle
                        : part->of(Category::kPipelineParallel) > 0 ? Kind::kMessage
                        : part->of(Category::kDataParallel) > 0     ? Kind::kData
                                                                    : Kind::kOther;
      if (kind == Kind::kOther) {
        waited_.add(*part, 1);
      } else {
        add(at_ + waited_.total() + part->total(), *part, {-1, kind});
      }
    }
  }
  void run(double end, std::int32_t microbatch, const Parts& parts) {
    const bool backward = parts.of(Category::kBackward) + parts.of(Category::kRecompute) > 0;
    const Kind kind = parts.of(Category::kForward) > 0 ? Kind::kForward : backward ? Kind::kBackward : Kind::kOther;
    add(end, parts, {microbatch, kind});
  }
  // To the end of the step: waits as above, and then `idle`.
  void rest(const std::vector<Parts>& waits, double idle, double end) {
    wait(waits);
    add(end, {{}, idle}, {-1, Kind::kIdle});
  }
  std::vector<OutlinePiece> take() {
    if (pieces_.size() > 1 && is_short(pieces_.back())) join_last_two(pieces_[pieces_.size() - 2].pass);
    std::vector<OutlinePiece> taken;
    for (const Piece& piece : pieces_) {
      OutlinePiece& made = taken.emplace_back();
      made.start = Seconds::from_base(piece.start);
      made.end = Seconds::from_base(piece.end);
      made.microbatch = piece.pass.microbatch;
      for (std::size_t c = 0; c < kCategoryCount; ++c) {
        made.time.by_category[c] = Seconds::from_base(piece.parts.by[c]);
      }
      made.time.idle = Seconds::from_base(piece.parts.bubble);
    }
    return taken;
  }

 private:
  enum class Kind : std::uint8_t { kMixed, kForward, kBackward, kOther, kIdle, kMessage, kData };
  struct Pass {
    std::int32_t microbatch = -1;
    Kind kind = Kind::kMixed;
    friend bool operator==(const Pass&, const Pass&) = default;
  };
  struct Piece {
    double start = 0, end = 0;
    Pass pass;
    Parts parts;
  };

  bool is_short(const Piece& piece) const { return piece.end - piece.start < shortest_; }

  void add(double end, const Parts& parts, Pass pass) {
    if (end <= at_) return;
    pieces_.push_back({std::exchange(at_, end), end, pass, parts});
    pieces_.back().parts.add(std::exchange(waited_, {}), 1);
    // The parts of a pass belong together, and so do short pieces.
    while (pieces_.size() > 1) {
      const Piece& last = pieces_.back();
      const Piece& before = pieces_[pieces_.size() - 2];
      if (before.pass == last.pass && last.pass.kind != Kind::kMixed) {
        join_last_two(last.pass);
      } else if (is_short(before)) {
        join_last_two(is_short(last) ? Pass{} : last.pass);
      } else {
        break;
      }
    }
  }

  void join_last_two(Pass pass) {
    const Piece last = pieces_.back();
    pieces_.pop_back();
    pieces_.back().end = last.end;
    pieces_.back().pass = pass;
    pieces_.back().parts.add(last.parts, 1);
  }

  double shortest_, at_ = 0;
  Parts waited_;  // before the next run
  std::vector<Piece> pieces_;
};

class Analyzer {
 public:
  Analyzer(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, double step, std::size_t pieces)
      : program_(program), costs_(costs), queue_(queue), history_(queue.history()), step_(step), pieces_(pieces) {
    offsets_.push_back(0);
    for (const FoldedPeriod& period : history_.periods) {
      offsets_.push_back(offsets_.back() + static_cast<double>(period.copies) * period.length);
    }
    alone_.resize(costs.rows.size());
    for (auto& row : alone_) row.resize(program.fragments.size());
  }

  StepAnalysis run() {
    StepAnalysis analysis;
    StepOutline& outline = analysis.outline;
    const double length = step_ - offsets_.back();
    for (std::uint32_t actor = 0; actor < program_.actors.size(); ++actor) {
      if (pieces_ > 0) drawing_.emplace(length / static_cast<double>(pieces_));
      account(actor);
      if (pieces_ > 0) outline.stages.push_back(drawing_->take());
    }
    if (pieces_ > 0) {
      outline.length = Seconds::from_base(length);
      outline.cuts = cuts();
    }
    const auto stages = static_cast<double>(program_.actors.size());
    Breakdown& parts = analysis.breakdown;
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      parts.*part_of(static_cast<Category>(c)) += Seconds::from_base(parts_.by[c] / stages);
    }
    parts.bubble = Seconds::from_base(parts_.bubble / stages);
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
  // Whether the record began in the period, or was under way when the period began and so has a twin in it.
  static bool began_in(const FoldedPeriod& period, std::uint32_t id) {
    return id != kNoRecord && (id >= period.first || place(period.under_way, id));
  }
  static std::optional<std::size_t> place(const std::vector<std::uint32_t>& records, std::uint32_t id) {
    const auto found = std::find(records.begin(), records.end(), id);
    if (found == records.end()) return std::nullopt;
    return static_cast<std::size_t>(found - records.begin());
  }
  // Of a record under way when a period ended: the period, and the record that stood there when the period began. In
  // all copies but the last the one went on as the other did.
  struct Twin {
    std::size_t period = 0;
    std::uint32_t before = kNoRecord;
  };
  std::optional<Twin> twin_of(std::uint32_t id) const {
    for (std::size_t p = 0; p < history_.periods.size(); ++p) {
      const FoldedPeriod& period = history_.periods[p];
      const auto at = place(period.under_way_after, id);
      if (at && period.under_way[*at] != kNoRecord) return Twin{p, period.under_way[*at]};
    }
    return std::nullopt;
  }

  // How many times the record began.
  double began(std::uint32_t id) const {
    const FoldedPeriod* period = period_of(id);
    return period == nullptr ? 1 : 1 + static_cast<double>(period->copies);
  }

  std::uint32_t row_of(const StepRecord& record) const { return costs_.row_of_actor[record.actor]; }

  // A run of the fragment alone on a stage of the row.
  const Reading& alone(std::uint32_t row, std::uint32_t fragment) {
    auto& known = alone_[row][fragment];
    if (!known) known = read(program_, program_.fragments[fragment], queue_.alone(row, FragmentId{fragment}), 0);
    return *known;
  }

  // Readings of open runs are made anew each time they are asked for: a run is asked for two or three times.
  Reading reading_of(const StepRecord& record) {
    if (record.spans == kNoRecord) return alone(row_of(record), record.what);
    const Fragment& fragment = program_.fragments[record.what];
    return read(program_, fragment, {history_.spans.at(record.spans), fragment.nodes.size()}, record.start);
  }

  std::vector<NodeSpan> spans_of(const StepRecord& record) {
    if (record.spans != kNoRecord) {
      const NodeSpan* const first = history_.spans.at(record.spans);
      return {first, first + program_.fragments[record.what].nodes.size()};
    }
    std::vector<NodeSpan> spans = queue_.alone(row_of(record), FragmentId{record.what});
    for (NodeSpan& span : spans) span = {span.start + record.start, span.end + record.start};
    return spans;
  }

  // A run in the copies of a period: to the end of the period as `id`, from there on as its twin.
  Reading joined(std::uint32_t id, Twin twin) {
    const StepRecord& record = history_.records[id];
    const StepRecord& before = history_.records[twin.before];
    if (record.times != 1 || before.times != 1) return reading_of(before);
    const FoldedPeriod& period = history_.periods[twin.period];
    const double border = period.at + offsets_[record.frame] - offsets_[twin.period];
    const double later = period.length + offsets_[record.frame] - offsets_[before.frame];
    std::vector<NodeSpan> spans = spans_of(record);
    const std::vector<NodeSpan> rest = spans_of(before);
    for (std::size_t n = 0; n < spans.size(); ++n) {
      if (spans[n].start >= border) spans[n].start = rest[n].start + later;
      if (spans[n].end > border) spans[n].end = rest[n].end + later;
    }
    return read(program_, program_.fragments[record.what], spans, record.start);
  }

  std::vector<OutlineCut> cuts() const {
    std::vector<OutlineCut> made;
    for (std::size_t p = 0; p < history_.periods.size(); ++p) {
      const FoldedPeriod& period = history_.periods[p];
      made.push_back({Seconds::from_base(period.at - offsets_[p]), Seconds::from_base(period.length), period.copies,
                      period.microbatches});
    }
    return made;
  }

  // ---- Breakdown ----

  // What [from, to) was, in which `actor` computes nothing because it waits for the end of record `id`. Goes back along
  // what each record waited for, while that happens on this stage. Times are of `frame`.
  void explain(Parts& parts, std::uint32_t actor, std::uint32_t frame, std::uint32_t id, double from, double to) {
    while (id != kNoRecord && from < to) {
      const StepRecord& record = history_.records[id];
      const bool here = record.actor == actor;
      if (is_run(record)) {
        if (!here) break;
        if (record.times > 0) {
          const Reading reading = reading_of(record);
          for (const Reading::Piece& piece : reading.tail) {
            const double seconds = std::min(piece.seconds, to - from);
            note(parts, piece.category, seconds);
            to -= seconds;
          }
          if (reading.has_kernels) break;
        }
      } else {
        // A message belongs to both of its ends; any other work of another stage makes this one wait in a bubble.
        if (!here && !is_message(record)) break;
        const double start = record.start + offsets_[frame] - offsets_[record.frame];
        const double begin = std::max(from, std::min(to, start));
        note(parts, program_.works[record.what].category, to - begin);
        to = begin;
        if (!here) break;
      }
      id = record.cause;
    }
    if (from >= to) return;
    parts.bubble += to - from;
    if (drawing_) waits_.push_back({{}, to - from});
  }

  // Part of a wait. Those of one wait come latest first.
  void note(Parts& parts, Category category, double seconds) {
    parts[category] += seconds;
    if (!drawing_ || seconds <= 0) return;
    waits_.emplace_back();
    waits_.back()[category] = seconds;
  }

  // What `actor` waited for from the end `from` of its last kernel to the first kernel of a run.
  Parts wait(std::uint32_t actor, const StepRecord& record, const Reading& reading, double from) {
    Parts parts;
    double to = record.start + reading.first_kernel;
    for (const Reading::Piece& piece : reading.lead) {
      const double seconds = std::min(piece.seconds, std::max(0.0, to - from));
      note(parts, piece.category, seconds);
      to -= seconds;
    }
    if (from < to) explain(parts, actor, record.frame, record.cause, from, to);
    return parts;
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

  // How long an actor waits in the copies of the periods from frame `from` to frame `to`, of which record `last` is
  // its last run before: all of them, unless it runs in the period.
  double waits_in_copies(std::uint32_t last, std::uint32_t from, std::uint32_t to) const {
    double seconds = 0;
    for (std::uint32_t p = from; p < to; ++p) {
      const FoldedPeriod& period = history_.periods[p];
      if (!(began_in(period, last) && last < period.end)) seconds += offsets_[p + 1] - offsets_[p];
    }
    return seconds;
  }

  // What an actor does from the first kernel of a record's runs to the last.
  static Parts kernels(const StepRecord& record, const Reading& reading) {
    Parts ran;
    const double again = record.times - 1;
    for (std::size_t c = 0; c < kCategoryCount; ++c) ran.by[c] = record.times * reading.inner[c];
    for (const auto* pieces : {&reading.lead, &reading.tail}) {
      for (const Reading::Piece& piece : *pieces) ran[piece.category] += again * piece.seconds;
    }
    return ran;
  }

  void account(std::uint32_t actor) {
    double computed = 0, busy = 0;
    std::uint32_t frame = 0, last = kNoRecord, before = kNoRecord;
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
      const double copies = began(id);
      const double from = computed + offsets_[record.frame] - offsets_[frame];
      // The first run of a folded period follows what was before the period; in the copies it follows the last run of
      // the copy before.
      const FoldedPeriod* period = period_of(id);
      const std::optional<Twin> twin = twin_of(id);
      waits_.clear();
      const Parts waited = wait(actor, record, reading, from);
      if (drawing_) drawing_->wait(waits_);
      const Parts ran = kernels(record, reading);
      if (twin) {
        parts_.add(waited, 1);
        parts_.add(ran, 1);
        const Reading others = joined(id, *twin);
        parts_.add(wait(actor, record, others, from), copies - 1);
        parts_.add(kernels(history_.records[twin->before], others), copies - 1);
      } else if (period != nullptr && !began_in(*period, before)) {
        parts_.add(waited, 1);
        parts_.add(wait(actor, record, reading, last_computed(actor, *period, record.frame) - period->length),
                   copies - 1);
        parts_.add(ran, copies);
      } else {
        parts_.add(waited, copies);
        parts_.add(ran, copies);
      }
      parts_.bubble += waits_in_copies(before, frame, record.frame);
      before = id;
      computed = record.end - (reading.end - reading.last_kernel);
      frame = record.frame;
      if (drawing_) {
        drawing_->run(computed - offsets_[frame], record.microbatch, ran);
      }
    }
    computed += offsets_[final_frame] - offsets_[frame];
    parts_.bubble += waits_in_copies(before, frame, final_frame);
    Parts rest;
    waits_.clear();
    if (last != kNoRecord) explain(rest, actor, final_frame, last, computed, busy);
    rest.bubble += step_ - std::max(computed, busy);
    parts_.add(rest, 1);
    if (drawing_) drawing_->rest(waits_, step_ - std::max(computed, busy), step_ - offsets_[final_frame]);
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
      const std::uint32_t row = row_of(record);
      if (!is_run(record)) {
        add(row, record.what, 1, record.end - record.start);
      } else if (record.times > 0 && record.spans == kNoRecord && history_.records[at].spans == kNoRecord) {
        closed[row][record.what] += record.times;
      } else if (record.times > 0) {
        const std::optional<Twin> twin = how == at ? std::nullopt : twin_of(at);
        const Reading reading = twin && twin->before == how ? joined(at, *twin) : reading_of(record);
        for (const auto& [work, seconds] : reading.path) add(row, work, 1, seconds);
      }
      const std::uint32_t cause = history_.records[at].cause;
      how = before(at, cause, copies, at);
    }
    for (std::uint32_t row = 0; row < closed.size(); ++row) {
      for (std::uint32_t fragment = 0; fragment < closed[row].size(); ++fragment) {
        const std::int64_t times = closed[row][fragment];
        if (times == 0) continue;
        for (const auto& [work, seconds] : alone(row, fragment).path) {
          add(row, work, times, static_cast<double>(times) * seconds);
        }
      }
    }
    for (const auto& [key, entry] : path_) {
      analysis.path.push_back(entry);
      analysis.path_length += entry.seconds;
    }
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
  std::size_t pieces_;
  std::optional<StageDrawing> drawing_;
  std::vector<Parts> waits_;  // of the last wait, latest first; when drawing
  Parts parts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, PathWork> path_;  // by row and work
};

}  // namespace

StepAnalysis analyze(const StepProgram& program, const ProgramCosts& costs, ProgramQueue& queue, Seconds step,
                     std::size_t pieces) {
  return Analyzer(program, costs, queue, step.in_base(), pieces).run();
}

std::optional<AnalyzedStep> run_and_analyze(const StepProgram& program, const ProgramCosts& costs,
                                            ProgramQueue::Options options, std::size_t pieces) {
  constexpr double kRoundingOfSums = 1e-9;
  options.record = true;
  ProgramQueue queue(program, costs, options);
  const std::optional<double> seconds = queue.run();
  if (!seconds) return std::nullopt;
  AnalyzedStep result;
  result.step = *seconds * units::s;
  for (const FoldedPeriod& period : queue.history().periods) {
    if (period.copies > result.folding.copies) result.folding = {period.microbatches, period.copies};
  }
  result.analysis = analyze(program, costs, queue, result.step, pieces);
  const auto sums = [&](Seconds parts) {
    return std::abs((parts - result.step).in_base()) <= kRoundingOfSums * *seconds;
  };
  if (options.fold && !(sums(result.analysis.path_length) && sums(result.analysis.breakdown.total()))) {
    options.fold = false;
    result.analyzed_unfolded = true;
    if (auto unfolded = run_and_analyze(program, costs, options, pieces))
      result.analysis = std::move(unfolded->analysis);
  }
  return result;
}

}  // namespace ns_dist
