#include "team_of_mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "mpi/mpi_door.h"

namespace ns_dist::cli {
namespace {

constexpr const char* kLibrary = "libns_dist_mpi.so";

class Door : public MpiTeam {
 public:
  explicit Door(const ns_dist_mpi& door) : door_(door) {}
  ~Door() override { door_.finish(); }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  int member() const override { return door_.member; }
  int size() const override { return door_.size; }
  std::size_t next(std::size_t count) override {
    const std::scoped_lock guard(lock_);
    return door_.next(count);
  }
  std::vector<std::string> exchange(const std::string& mine) override {
    std::vector<std::string> all;
    const auto take = [](void* into, int, const char* bytes, std::size_t size) {
      static_cast<std::vector<std::string>*>(into)->emplace_back(bytes, size);
    };
    door_.exchange(mine.data(), mine.size(), take, &all);
    return all;
  }
  void leave(int code) override { door_.leave(code); }

 private:
  const ns_dist_mpi& door_;
  std::mutex lock_;
};

// What Open MPI, MPICH and srun tell the processes that they start: how many there are. Nothing where there is one.
const char* started_together() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::string_view(size) != "1") return name;
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<MpiTeam>> team_of_mpi() {
  const char* variable = started_together();
  if (variable == nullptr) return nullptr;
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
  void* library = nullptr;
  std::string why = "it is not beside the program";
  for (const std::filesystem::path& place : {program / kLibrary, program / NS_DIST_MPI_FOLDER / kLibrary}) {
    if (library != nullptr || !std::filesystem::exists(place, failed)) continue;
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    why = library == nullptr ? dlerror() : "it could not start MPI";
  }
  const auto begin =
      library != nullptr ? reinterpret_cast<ns_dist_mpi_begin_t>(dlsym(library, NS_DIST_MPI_BEGIN)) : nullptr;
  const ns_dist_mpi* door = begin != nullptr ? begin() : nullptr;
  if (door == nullptr) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("{} says that processes were started together, and {} cannot be used: {}", variable,
                             kLibrary, why),
                 "MPI", "a build that found MPI (Debian: libopenmpi-dev), or one process",
                 "install MPI and build again, or start ns-dist without mpirun"});
  }
  if (door->size > 1 && door->member != 0) {
    for (std::FILE* stream : {stdout, stderr}) {
      if (std::freopen("/dev/null", "w", stream) == nullptr) std::fclose(stream);
    }
  }
  return std::make_unique<Door>(*door);
}

bool all_ready(Team* team, bool ready) {
  if (team == nullptr) return ready;
  const std::vector<std::string> all = team->exchange(ready ? "ready" : "");
  return std::none_of(all.begin(), all.end(), [](const std::string& each) { return each.empty(); });
}

}  // namespace ns_dist::cli
