/* A kernel, a collective and a training step on one machine, in C99. */
#include <ns_dist_c.h>
#include <stdio.h>
#include <string.h>

static int fail(ns_dist_session* session) {
  fprintf(stderr, "%s\n", ns_dist_error(session));
  ns_dist_close(session);
  return 1;
}

int main(void) {
  const char* machine[] = {"machine/gpu=h100-sxm-80gb", "machine/nodes=2", "model=gpt3-13b", NULL};
  ns_dist_session* session = NULL;
  if (ns_dist_open(NS_DIST_ABI, machine, &session) != NS_DIST_OK) return fail(session);

  ns_dist_forecast forecast = {0};
  forecast.struct_size = sizeof(forecast);
  ns_dist_kernel kernel = {0};
  kernel.struct_size = sizeof(kernel);
  kernel.op = "gemm dtype=bf16 m=8192 n=8192 k=8192";
  if (ns_dist_forecast_kernel(session, &kernel, &forecast) != NS_DIST_OK) return fail(session);
  printf("kernel      %10.1f us (%.1f to %.1f), %s\n", forecast.ns * 1e-3, forecast.low_ns * 1e-3,
         forecast.high_ns * 1e-3, forecast.method);

  ns_dist_collective collective = {0};
  collective.struct_size = sizeof(collective);
  collective.kind = "all_reduce";
  collective.bytes = 64 * 1024 * 1024;
  collective.ranks = 16;
  collective.ranks_per_node = 8;
  if (ns_dist_forecast_collective(session, &collective, &forecast) != NS_DIST_OK) return fail(session);
  printf("all-reduce  %10.1f us (%.1f to %.1f), %s\n", forecast.ns * 1e-3, forecast.low_ns * 1e-3,
         forecast.high_ns * 1e-3, forecast.method);

  const char* plan[] = {"plan/tp=8", "training/global_batch=16", NULL};
  char* report = NULL;
  if (ns_dist_simulate(session, plan, &report) != NS_DIST_OK) return fail(session);
  const char* step = strstr(report, "\"step_time_s\": ");
  printf("step        %10.10s s\n", step == NULL ? "?" : step + strlen("\"step_time_s\": "));
  ns_dist_free(report);
  ns_dist_close(session);
  return 0;
}
