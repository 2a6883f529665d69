// Preloaded into a process (LD_PRELOAD), says which functions a crash came from, and where its instruction lies.
#include <execinfo.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

constexpr int kFrames = 96;
void say(const char* text, std::size_t n) {
  if (write(STDERR_FILENO, text, n) < 0) _exit(1);
}

void handle(int signal, siginfo_t* info, void* context) {
  char line[512];
  const auto* registers = static_cast<ucontext_t*>(context);
  const auto pc = static_cast<std::uint64_t>(registers->uc_mcontext.gregs[REG_RIP]);
  const int n =
      std::snprintf(line, sizeof line, "\nsignal %d, address %p, instruction %#lx\n", signal, info->si_addr, pc);
  say(line, static_cast<std::size_t>(n));
  void* frames[kFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kFrames), STDERR_FILENO);
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
    std::uint64_t first = 0, last = 0;
    if (std::sscanf(line, "%lx-%lx", &first, &last) == 2 && pc >= first && pc < last) say(line, std::strlen(line));
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

[[gnu::constructor]] void begin() {
  void* first = nullptr;
  backtrace(&first, 1);  // loads what it needs now, since a handler must not
  static char room[1 << 16];
  const stack_t stack{.ss_sp = room, .ss_flags = 0, .ss_size = sizeof room};
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int s : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) sigaction(s, &action, nullptr);
}

}  // namespace
