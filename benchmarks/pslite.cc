// A worker and a server of ps-lite with one array of floats between them: what a small call costs there.
//
//   g++ -O3 -std=c++11 -I$PS_LITE/include -I$PS_LITE/src pslite.cc $PS_LITE/src/{customer,postoffice,van,meta.pb}.cc
//       -lzmq -lprotobuf -lpthread -o pslite
//   ./pslite unix 250000
//
// Reads and prints what pingpong.c does. A whole array travels as the value of one key, which suits ps-lite best.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ps/ps.h"

static void be(const char* role) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("DMLC_ROLE", role, 1);
  ps::Start(0);
}

static void serve(size_t floats) {
  be("server");
  std::vector<float> row(floats);
  ps::KVServer<float> server(0);
  server.set_request_handle([&](const ps::KVMeta& meta, const ps::KVPairs<float>& asked, ps::KVServer<float>* self) {
    ps::KVPairs<float> reply;
    size_t many = asked.keys.size();
    if (meta.push) {
      if (many == 1) {
        for (size_t i = 0; i < asked.vals.size(); ++i) row[i] += asked.vals[i];
      } else {
        for (size_t i = 0; i < many; ++i) row[asked.keys[i]] += asked.vals[i];
      }
    } else {
      reply.keys = asked.keys;
      if (many == 1) {  // meta.cmd: how many
        reply.vals = ps::SArray<float>(row.data(), meta.cmd);
        reply.lens = {meta.cmd};
      } else {
        reply.vals.resize(many);
        for (size_t i = 0; i < many; ++i) reply.vals[i] = row[asked.keys[i]];
      }
    }
    self->Response(meta, reply);
  });
  ps::Finalize(0, true);
}

static void ask() {
  be("worker");
  ps::KVWorker<float> worker(0, 0);
  char verb[8];
  unsigned long long count, calls;
  while (scanf("%7s %llu %llu", verb, &count, &calls) == 3) {
    bool keyed = !strcmp(verb, "gather") || !strcmp(verb, "scatter");
    ps::SArray<ps::Key> keys(keyed ? count : 1, 0);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = 10 * i;
    ps::SArray<float> values(count, 1.0f);
    ps::SArray<int> lens(keyed ? 0 : 1, static_cast<int>(count));
    for (unsigned long long i = 0; i < calls; ++i) {
      if (!strcmp(verb, "pull")) {
        ps::SArray<int> got;
        worker.Wait(worker.ZPull(keys, &values, &got, static_cast<int>(count)));
      } else if (!strcmp(verb, "gather")) {
        worker.Wait(worker.ZPull(keys, &values));
      } else {
        worker.Wait(worker.ZPush(keys, values, lens));
      }
    }
    puts("done");
    fflush(stdout);
  }
  _exit(0);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  setenv("DMLC_NUM_WORKER", "1", 1);
  setenv("DMLC_NUM_SERVER", "1", 1);
  setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
  setenv("DMLC_NODE_HOST", "127.0.0.1", 1);
  setenv("DMLC_PS_ROOT_PORT", argv[3], 1);
  if (!strcmp(argv[1], "unix")) setenv("DMLC_LOCAL", "1", 1);
  if (!fork()) {
    be("scheduler");
    ps::Finalize(0, true);
    return 0;
  }
  if (!fork()) {
    serve(strtoull(argv[2], nullptr, 10));
    return 0;
  }
  ask();
}
