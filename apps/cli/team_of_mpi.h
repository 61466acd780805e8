// The processes that mpirun or srun started together.
#pragma once

#include <memory>

#include "ns_dist/result.h"
#include "ns_dist/team.h"

namespace ns_dist::cli {

class MpiTeam : public Team {
 public:
  // Ends all members with this exit code, where only this one knows that they must end.
  virtual void leave(int code) = 0;
};

// Nothing where this process is alone. From then on only member 0 prints: standard output and error of the others go
// to /dev/null. Errors: several processes were started together by a program that was built without MPI.
Result<std::unique_ptr<MpiTeam>> team_of_mpi();

// Whether every member is ready; without a team, `ready`. All members ask at the same point.
bool all_ready(Team* team, bool ready);

}  // namespace ns_dist::cli
