/* What libns_dist_mpi.so, the only part that is linked with MPI, does for the program. The program loads it where it
 * was started by mpirun or srun, so that it needs no MPI otherwise. C, since both have a C++ runtime of their own. */
#ifndef NS_DIST_MPI_DOOR_H_
#define NS_DIST_MPI_DOOR_H_

#include <stddef.h>

struct ns_dist_mpi {
  int member, size;
  /* Any thread, one at a time. */
  size_t (*next)(size_t count);
  /* Calls take(context, member, bytes, size) for each member in order. */
  void (*exchange)(const char* bytes, size_t size, void (*take)(void*, int, const char*, size_t), void* context);
  void (*finish)(void);    /* of all members together; nothing may be called afterwards */
  void (*leave)(int code); /* ends all members at once */
};

/* Starts MPI. NULL: it cannot be used. */
typedef const struct ns_dist_mpi* (*ns_dist_mpi_begin_t)(void);
#define NS_DIST_MPI_BEGIN "ns_dist_mpi_begin"

#endif
