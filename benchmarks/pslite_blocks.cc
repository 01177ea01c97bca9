// Vectors of length k in ps-lite (github.com/dmlc/ps-lite), one worker and one server: what wire_blocks.py measures of
// PS2. The server keeps all vectors in one array; keys are drawn anew for each call, ascending, as ps-lite wants them.
//
//   protoc --cpp_out=. -I ps-lite/src ps-lite/src/meta.proto
//   g++ -std=c++14 -O3 -march=native -I ps-lite/include -I ps-lite/src -I . -o pslite_blocks pslite_blocks.cc
//       meta.pb.cc ps-lite/src/{customer,postoffice,van}.cc -lzmq -lprotobuf -lpthread
//   export DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=1 DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=9091 DMLC_LOCAL=1
//   for role in scheduler server worker; do DMLC_ROLE=$role ./pslite_blocks 2000000 128 100000 15 & done; wait
//
// The worker prints milliseconds of a pull and of an add, a line a turn; DMLC_LOCAL=1 is Unix sockets.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "ps/ps.h"

using ps::Key;
using ps::SArray;

static const int kWarmUps = 3;
static size_t columns, k, asked;

static void Answer(const ps::KVMeta& meta, const ps::KVPairs<float>& came, ps::KVServer<float>* server) {
  static std::vector<float> table(columns * k, 1);
  ps::KVPairs<float> reply;
  if (meta.push) {
    for (size_t i = 0; i < came.keys.size(); ++i) {
      float* to = &table[came.keys[i] * k];
      const float* from = &came.vals[i * k];
      for (size_t j = 0; j < k; ++j) to[j] += from[j];
    }
  } else {
    reply.keys = came.keys;
    reply.vals.resize(came.keys.size() * k);
    for (size_t i = 0; i < came.keys.size(); ++i) {
      memcpy(&reply.vals[i * k], &table[came.keys[i] * k], k * sizeof(float));
    }
  }
  server->Response(meta, reply);
}

static double MsSince(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

static void Measure(int repeats) {
  ps::KVWorker<float> worker(0, 0);
  std::mt19937_64 random(2019);
  SArray<float> values(asked * k, 1), into(asked * k, 1);
  for (int turn = 0; turn < kWarmUps + repeats; ++turn) {
    std::vector<Key> drawn;
    while (drawn.size() < asked) {
      for (size_t i = drawn.size(); i < asked; ++i) drawn.push_back(random() % columns);
      std::sort(drawn.begin(), drawn.end());
      drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
    }
    SArray<Key> keys(drawn);
    auto began = std::chrono::steady_clock::now();
    worker.Wait(worker.ZPull(keys, &into));
    double pull_ms = MsSince(began);
    began = std::chrono::steady_clock::now();
    worker.Wait(worker.ZPush(keys, values));
    double add_ms = MsSince(began);
    if (turn >= kWarmUps) printf("%.2f %.2f\n", pull_ms, add_ms);
  }
}

int main(int, char** argv) {
  columns = atol(argv[1]), k = atol(argv[2]), asked = atol(argv[3]);
  ps::Start(0);
  if (ps::IsServer()) {
    auto server = new ps::KVServer<float>(0);
    server->set_request_handle(Answer);
    ps::RegisterExitCallback([server]() { delete server; });
  }
  if (ps::IsWorker()) Measure(atoi(argv[4]));
  ps::Finalize(0, true);
  return 0;
}
