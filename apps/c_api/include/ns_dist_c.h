/* ns-dist for other programs, in C: how long kernels, collectives and training steps take.
 *
 *   const char* fields[] = {"machine/gpu=h100-sxm-80gb", NULL};
 *   ns_dist_session* session = NULL;
 *   if (ns_dist_open(NS_DIST_ABI, fields, &session) == NS_DIST_OK) {
 *     ns_dist_kernel kernel = {0};
 *     kernel.struct_size = sizeof(kernel);
 *     kernel.op = "gemm dtype=bf16 m=8192 n=8192 k=8192";
 *     ns_dist_forecast forecast = {0};
 *     forecast.struct_size = sizeof(forecast);
 *     if (ns_dist_forecast_kernel(session, &kernel, &forecast) == NS_DIST_OK) printf("%.0f ns\n", forecast.ns);
 *   }
 *   ns_dist_close(session);
 *
 * Link with libns_dist_c.so (pkg-config ns_dist_c, or find_package(ns_dist_c) and ns_dist::c).
 *
 * Fields are texts "name=value" in a list that ends with NULL; the last one of a name holds. Names are those of
 * reports and errors: "model", "machine/gpu", "plan/tp", "training/global_batch"; values are those of the flags of
 * ns-dist. NULL instead of a list is an empty one.
 *
 * Structs begin with their size, which the caller sets to sizeof. New versions only append members. The library does
 * not write members beyond this size; members that the library does not know must be zero. Zero or NULL is the default
 * of a member, unless its comment says "needed".
 *
 * Any number of threads may use a session at once. Texts are UTF-8. No function throws, prints or ends the program.
 */
#ifndef NS_DIST_C_H
#define NS_DIST_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

/* Grows with every incompatible change; the library's name libns_dist_c.so.N has the same number. */
#define NS_DIST_ABI 1

/* What functions return. */
enum {
  NS_DIST_OK = 0,
  NS_DIST_BAD_INPUT = 1,  /* ns_dist_error says what is wrong, where, and what to write instead */
  NS_DIST_UNKNOWN = 2,    /* a node that does not tell what it computes, or whose operator this GPU cannot run */
  NS_DIST_INFEASIBLE = 3, /* all can be read, but no such plan or collective is possible on its model and machine */
  NS_DIST_BUG = 70        /* memory is exhausted, or a bug of ours */
};

/* The models of one machine. */
typedef struct ns_dist_session ns_dist_session;

/* The library's NS_DIST_ABI; "0.1.0". */
uint32_t ns_dist_abi(void);
const char* ns_dist_version(void);

/* GPUs, models and clusters are looked for in the folders of NS_DIST_PATH, in share/ns_dist beside the folder of this
 * library (or one level above, for lib/x86_64-linux-gnu), and among those that it has compiled in.
 * Opens a session with the machine and the plan that `fields` set (defaults: those of ns-dist). `abi` is NS_DIST_ABI.
 * *session is NULL only when memory is exhausted; after an error it tells what is wrong and is good for nothing else.
 * Close it in any case. */
int ns_dist_open(uint32_t abi, const char* const* fields, ns_dist_session** session);
void ns_dist_close(ns_dist_session* session); /* NULL is allowed */

/* The last mistake of this thread with this session, one line each; "" when there was none. Valid until the thread's
 * next call with the session; of more than 4096 threads with mistakes, those that began first lose theirs. */
const char* ns_dist_error(const ns_dist_session* session);

/* Times in ns. low to high is a 90 % interval; no time can be shorter than the floor. */
typedef struct ns_dist_forecast {
  size_t struct_size;
  double ns, low_ns, high_ns, floor_ns;
  char method[48];      /* source of the number, as in `ns-dist explain`, cut to 47 bytes; "several" of operators */
  int32_t extrapolated; /* 1: outside the range on which the method was fitted */
  int32_t reserved;     /* zero, as every `reserved` */
} ns_dist_forecast;

typedef struct ns_dist_kernel {
  size_t struct_size;
  /* Needed: an operator, "gemm dtype=bf16 m=8192 n=8192 k=8192": kind, number format and members as in
   * ns_dist/operator_text.h. Dimensions that are left out are 1, value_dim and kv_heads too; switches are off, but
   * for causal. 8 bits are dtype=fp8 with scaling=tensor or block, 4 bits dtype=fp4. Several with "|" between them run
   * one after the other. Products of experts take as long as in the session's plan: longer where their experts lie on
   * several ranks ("plan/ep"). */
  const char* op;
  int64_t ranks; /* GPUs that wait for each other, so for the slowest of them; 0: one */
  /* 1: one kernel alone at full clocks, as `ns-dist kernels --mode burst`. 0: as in a training step, longer than
   * `--mode sustained` by the clock under load and the slowest GPU (`ns-dist explain step` prints both). */
  int32_t burst;
  int32_t reserved;
} ns_dist_kernel;
int ns_dist_forecast_kernel(ns_dist_session* session, const ns_dist_kernel* kernel, ns_dist_forecast* forecast);

/* As in a training step: SMs have the clock of the products beside it. */
typedef struct ns_dist_collective {
  size_t struct_size;
  const char* kind;       /* needed: "all_reduce", ... as nccl-tests spells them, and "send_recv" */
  double bytes;           /* needed, except of a barrier: the size that nccl-tests prints */
  int64_t ranks;          /* needed: at least 2, at most the GPUs of the session's nodes (field "machine/nodes") */
  int64_t ranks_per_node; /* 0: all in one node */
  double imbalance; /* all_to_all: bytes through the busiest rank's port over the mean; `bytes` is the mean. 0: even */
  int32_t integer;  /* 1: elements are integers, which switches do not reduce; 0: floating point */
  int32_t reserved;
} ns_dist_collective;
int ns_dist_forecast_collective(ns_dist_session* session, const ns_dist_collective* collective,
                                ns_dist_forecast* forecast);

/* A kernel's node of a Chakra trace. Its operator is told by the attribute ns_dist_op, or by a PyTorch operator
 * ("aten::mm", as op_schema or name) with the shapes and types of its inputs, or only by num_ops (FLOP) and tensor_size
 * (bytes): `method` of the answer is then "operator attribute", "PyTorch operator" or "work". Beside ns_dist_op,
 * ns_dist_factor is how many times as long it takes in its plan (uneven experts, a slow stage). Nodes with an op_type
 * are those of STAGE, whose num_ops are multiply-adds and whose tensor_size is elements: they are unknown here, and
 * `ns-dist annotate` forecasts them by their tensors. */
typedef struct ns_dist_node {
  size_t struct_size;
  const char* name;
  const char *input_values, *input_shapes, *input_types; /* as the trace writes them: "[[64, 32], [32, 16]]" */
  /* "name=value", ends with NULL. ns_dist_op, ns_dist_factor, op_schema, op_type, num_ops, tensor_size and
   * ns_dist_duration_ns are read, and what waits have. */
  const char* const* attributes;
  int64_t ranks; /* as in ns_dist_kernel */
  /* Of a wait for the host, a node with ns_dist_launches_ns: what the nodes take that its ns_dist_launched names, in
   * ns and in its order, as in the trace and now. The forecast is the wait that is left, and ns_dist_duration_ns is
   * that of the trace. `attributes` hold the lists of numbers with "," between them: ns_dist_launches_ns,
   * ns_dist_launched, ns_dist_launched_deps, ns_dist_read_before. `method` is "host's launches". */
  const double *launched_ns, *launched_now_ns;
} ns_dist_node;
/* NS_DIST_UNKNOWN if nothing tells the operator: the caller should keep the recorded time. NS_DIST_BAD_INPUT if
 * ns_dist_factor is no factor of each operator. */
int ns_dist_forecast_node(ns_dist_session* session, const ns_dist_node* node, ns_dist_forecast* forecast);

/* One training step: ns are its time. Memory is that of the fullest GPU. */
typedef struct ns_dist_step {
  size_t struct_size;
  double ns, low_ns, high_ns; /* low to high is a 90 % interval */
  double tokens_per_second;   /* of all GPUs */
  double peak_bytes;          /* PyTorch's peak */
  double device_bytes;        /* what nvidia-smi shows */
  double capacity_bytes;      /* the GPU's memory */
  int64_t gpus;               /* that the plan uses */
  int32_t fits;               /* 1: the peak, the CUDA context and NCCL's buffers fit; 0: a step that cannot run */
  int32_t reserved;
} ns_dist_step;
/* The step of the session's fields and those given here. It takes some ms; the first one of another machine, network or
 * calibration longer. NS_DIST_INFEASIBLE: no such plan. Files that fields name are read again, relative paths from the
 * working directory of the call. */
int ns_dist_forecast_step(ns_dist_session* session, const char* const* fields, ns_dist_step* step);

/* The same with advice, which times many other plans and takes tens of times as long: *report becomes the JSON object
 * of `ns-dist simulate --json`, which ns_dist_free takes back, or NULL. Warnings name fields where that names flags;
 * `set` of a change holds its fields. */
int ns_dist_simulate(ns_dist_session* session, const char* const* fields, char** report);
void ns_dist_free(char* text); /* NULL is allowed */

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
