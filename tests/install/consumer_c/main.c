#include <ns_dist_c.h>
#include <stdio.h>

int main(void) {
  ns_dist_session* session = NULL;
  const int opened = ns_dist_open(NS_DIST_ABI, NULL, &session);
  ns_dist_close(session);
  if (opened != NS_DIST_OK) return 1;
  return puts(ns_dist_version()) < 0;
}
