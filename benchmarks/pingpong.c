// A C client and a C server with one array of floats between them: what a small call costs without Python.
//
//   cc -O3 -march=native -o pingpong pingpong.c && ./pingpong unix 250000
//
// Reads lines "pull FLOATS CALLS" and "add FLOATS CALLS"; prints "done" after each. The server is a child of its own.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>
#include <unistd.h>

enum { PULL, ADD };
// As long as a header of PS2's is, give or take a name.
struct head { uint64_t what, count, rest[14]; };

static void fill(int fd, void* into, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t n = recv(fd, (char*)into + got, size - got, MSG_WAITALL);
    if (n <= 0) exit(0);
    got += n;
  }
}

static void put(int fd, struct head* head, const void* data, size_t size) {
  struct iovec parts[2] = {{head, sizeof *head}, {(void*)data, size}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = size ? 2 : 1};
  size_t left = sizeof *head + size;
  while (left) {
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n <= 0) exit(0);
    left -= n;
    for (int i = 0; i < 2 && n; ++i) {
      size_t took = (size_t)n < parts[i].iov_len ? (size_t)n : parts[i].iov_len;
      parts[i].iov_base = (char*)parts[i].iov_base + took;
      parts[i].iov_len -= took;
      n -= took;
    }
  }
}

static void serve(int fd, size_t floats) {
  float *row = calloc(floats, sizeof *row), *came = malloc(floats * sizeof *came);
  struct head head, reply = {0};
  for (;;) {
    fill(fd, &head, sizeof head);
    size_t size = head.count * sizeof *row;
    if (head.what == ADD) {
      fill(fd, came, size);
      for (size_t i = 0; i < head.count; ++i) row[i] += came[i];
      put(fd, &reply, NULL, 0);
    } else {
      put(fd, &reply, row, size);
    }
  }
}

static void connected(const char* family, int ends[2]) {
  if (!strcmp(family, "unix")) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) exit(1);
    return;
  }
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  if (bind(listener, (struct sockaddr*)&at, size) || listen(listener, 1)) exit(1);
  getsockname(listener, (struct sockaddr*)&at, &size);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(ends[0], (struct sockaddr*)&at, size)) exit(1);
  ends[1] = accept(listener, NULL, NULL);
  for (int i = 0; i < 2; ++i) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  size_t floats = strtoull(argv[2], NULL, 10);
  int ends[2];
  connected(argv[1], ends);
  if (!fork()) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    serve(ends[1], floats);
  }
  close(ends[1]);
  float* row = calloc(floats, sizeof *row);
  char verb[8];
  unsigned long long count, calls;
  while (scanf("%7s %llu %llu", verb, &count, &calls) == 3 && count <= floats) {
    struct head head = {.what = !strcmp(verb, "add") ? ADD : PULL, .count = count}, reply;
    for (unsigned long long i = 0; i < calls; ++i) {
      put(ends[0], &head, row, head.what == ADD ? count * sizeof *row : 0);
      fill(ends[0], &reply, sizeof reply);
      if (head.what == PULL) fill(ends[0], row, count * sizeof *row);
    }
    puts("done");
    fflush(stdout);
  }
  return 0;
}
