#include "mpi_door.h"

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

ns_dist_mpi door;
MPI_Win counter;
std::uint64_t* numbers = nullptr;  // of member 0: how many were given

size_t next(size_t count) {
  const std::uint64_t asked = count;
  std::uint64_t first = 0;
  MPI_Fetch_and_op(&asked, &first, MPI_UINT64_T, 0, 0, MPI_SUM, counter);
  MPI_Win_flush(0, counter);
  return first;
}

void exchange(const char* bytes, size_t size, void (*take)(void*, int, const char*, size_t), void* context) {
  const auto members = static_cast<size_t>(door.size);
  std::uint64_t mine = size;
  std::vector<std::uint64_t> sizes(members);
  MPI_Allgather(&mine, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
  std::string theirs;
  for (int member = 0; member < door.size; ++member) {
    // One after the other in pieces: counts of MPI are ints.
    constexpr std::uint64_t kPiece = 1 << 28;
    theirs.assign(sizes[static_cast<size_t>(member)], '\0');
    if (member == door.member) theirs.assign(bytes, size);
    for (std::uint64_t at = 0; at < theirs.size(); at += kPiece) {
      const std::uint64_t piece = theirs.size() - at < kPiece ? theirs.size() - at : kPiece;
      MPI_Bcast(theirs.data() + at, static_cast<int>(piece), MPI_CHAR, member, MPI_COMM_WORLD);
    }
    take(context, member, theirs.data(), theirs.size());
  }
  if (door.member == 0) {
    std::uint64_t zero = 0, before = 0;
    MPI_Fetch_and_op(&zero, &before, MPI_UINT64_T, 0, 0, MPI_REPLACE, counter);
    MPI_Win_flush(0, counter);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void finish() {
  MPI_Win_unlock_all(counter);
  MPI_Win_free(&counter);
  MPI_Finalize();
}

void leave(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const ns_dist_mpi* ns_dist_mpi_begin(void) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return nullptr;
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return nullptr;
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &door.member);
  MPI_Comm_size(MPI_COMM_WORLD, &door.size);
  const MPI_Aint room = door.member == 0 ? sizeof *numbers : 0;
  MPI_Win_allocate(room, sizeof *numbers, MPI_INFO_NULL, MPI_COMM_WORLD, &numbers, &counter);
  if (door.member == 0) *numbers = 0;
  MPI_Win_lock_all(0, counter);
  MPI_Win_sync(counter);
  MPI_Barrier(MPI_COMM_WORLD);
  door.next = next;
  door.exchange = exchange;
  door.finish = finish;
  door.leave = leave;
  return &door;
}
