#include "interrupts.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <system_error>
#include <thread>

#include "ns_dist/files.h"

namespace ns_dist::cli {
namespace {

std::atomic<bool> stops_early{false}, stopped{false};

[[noreturn]] void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  std::raise(signal);
  _exit(128 + signal);
}

// The one thread to which these signals come: unlike a handler, it may take locks and walk through folders.
[[noreturn]] void wait_for(sigset_t signals) {
  std::time_t stopped_at = 0;
  while (true) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal == SIGINT && stops_early) {
      const std::time_t now = std::time(nullptr);
      if (!stopped.exchange(true)) stopped_at = now;
      if (now <= stopped_at) continue;
    }
    remove_unfinished();
    end_by(signal);
  }
}

}  // namespace

void watch_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&signals, signal);  // nohup, and jobs in the background, ignore some
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    std::thread(wait_for, signals).detach();
  } catch (const std::system_error&) {  // no more threads: a signal ends the command as it always does
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }
}

const std::atomic<bool>& stop_at_interrupt() {
  stops_early = true;
  return stopped;
}

void end_if_nobody_reads() {
  pollfd standard_output = {STDOUT_FILENO, 0, 0};
  if (poll(&standard_output, 1, 0) == 1 && (standard_output.revents & POLLERR) != 0) end_by(SIGPIPE);
}

}  // namespace ns_dist::cli
