// Plans of a search that are impossible: how many for which reason, and an example of each.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "ns_dist/internal/shared_work.h"
#include "ns_dist/result.h"
#include "ns_dist/scenario.h"
#include "ns_dist/search.h"
#include "ns_dist/units.h"

namespace ns_dist {

class RefusedPlans {
 public:
  // Notes that `count` plans from `leaf` of `group` on are impossible, the first of which is `plan`.
  void refuse(const Error& error, const Scenario& plan, std::uint32_t group, std::uint32_t leaf, std::uint64_t count);
  void refuse(Bytes held, Bytes capacity, std::uint32_t group, std::uint32_t leaf, std::uint64_t count);
  void add(const RefusedPlans& others);
  void tell(SearchResult& result) const;

  void pack(Packer& to) const;
  void unpack(Unpacker& from);

 private:
  // Why a plan is impossible, and where in the space it lies. Of plans whose global batch is at fault, those with the
  // fewest sequences in one pass of all replicas come first: they tell what binds.
  struct Example {
    std::int64_t sequences = 0;
    std::uint32_t group = 0, leaf = 0;
    std::string message;
    bool before(const Example& other) const;
    void pack(Packer& to) const;
    void unpack(Unpacker& from);
  };
  // `message`: makes that of the example.
  template <class Message>
  void refuse(const std::string& reason, Example example, std::uint64_t count, const Message& message);

  std::map<std::string, std::uint64_t> count_;  // by reason
  std::map<std::string, Example> examples_;
  double least_memory_ = std::numeric_limits<double>::infinity();  // bytes
};

}  // namespace ns_dist
