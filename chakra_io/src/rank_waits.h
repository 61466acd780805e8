// Which ranks wait for which others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ns_dist/chakra_io.h"

namespace ns_dist::chakra {

class RankWaits {
 public:
  struct Waiter {
    Rank rank = 0;
    std::uint64_t node = 0;  // id
  };
  // None of `waiters` goes on before all of `awaited` have done `what`.
  void add(const std::vector<Waiter>& waiters, std::vector<Rank> awaited, std::string what);

  // Ranks of which each waits for the next one, the last one for the first. Empty: there are none.
  std::vector<TraceWait> circle() const;

 private:
  struct Awaited {
    std::vector<Rank> ranks;
    std::string what;
  };
  struct Wait {
    std::uint64_t node = 0;
    std::size_t awaited = 0;  // into awaited_; ranks that wait for the same share it
  };
  std::map<Rank, std::vector<Wait>> waits_;
  std::vector<Awaited> awaited_;
};

}  // namespace ns_dist::chakra
