// SimGrid's flow-level network as a referee of our max-min sharing: random platforms, random flows, the same completion
// times. SimGrid without its TCP corrections: no latency, no window, no cross traffic.
#include <gtest/gtest.h>

#include <random>
#include <simgrid/s4u.hpp>

#include "support/completion_times.h"

namespace ns_dist {
namespace {

namespace sg = simgrid::s4u;
using test::completion_times;
using test::TimedFlow;

struct Scene {
  std::vector<BytesPerSecond> capacities;
  std::vector<TimedFlow> flows;
};

// Ten flows over four to seven links, each over one to three of them; starts within the first second.
Scene random_scene(unsigned seed) {
  std::mt19937 engine(seed);
  const auto draw = [&](unsigned bound) { return static_cast<unsigned>(engine() % bound); };
  Scene scene;
  const std::size_t links = 4 + draw(4);
  for (std::size_t l = 0; l < links; ++l) scene.capacities.push_back((1 + draw(20)) * units::GB / units::s);
  for (int f = 0; f < 10; ++f) {
    TimedFlow flow;
    flow.size = (1 + draw(50)) * 0.1 * units::GB;
    flow.start = draw(10) * 0.1 * units::s;
    const std::size_t first = draw(static_cast<unsigned>(links)), hops = 1 + draw(3);
    for (std::size_t h = 0; h < hops; ++h) flow.uses.push_back({(first + h) % links, 1});
    scene.flows.push_back(flow);
  }
  return scene;
}

// Builds the scene beside the others: the scenes share no link. One host pair and route for each flow, so that routes
// can be anything. `ends` is filled when the engine runs.
void build(const Scene& scene, int number, sg::NetZone* zone, std::vector<double>& ends) {
  const std::string prefix = "scene" + std::to_string(number) + "-";
  std::vector<const sg::Link*> links;
  for (std::size_t l = 0; l < scene.capacities.size(); ++l) {
    links.push_back(zone->create_link(prefix + "link" + std::to_string(l), scene.capacities[l].in_base())
                        ->set_latency(0)
                        ->set_sharing_policy(sg::Link::SharingPolicy::SHARED)
                        ->seal());
  }
  ends.assign(scene.flows.size(), -1);
  for (std::size_t f = 0; f < scene.flows.size(); ++f) {
    const TimedFlow& flow = scene.flows[f];
    auto* from = zone->create_host(prefix + "from" + std::to_string(f), 1e9)->seal();
    auto* to = zone->create_host(prefix + "to" + std::to_string(f), 1e9)->seal();
    std::vector<sg::LinkInRoute> route;
    for (const LinkUse& use : flow.uses) route.emplace_back(links[use.link]);
    zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
    sg::Actor::create(prefix + "flow" + std::to_string(f), from, [&ends, &flow, f, from, to] {
      sg::this_actor::sleep_for(flow.start.in_base());
      sg::Comm::sendto(from, to, static_cast<std::uint64_t>(flow.size.in_base()));
      ends[f] = sg::Engine::get_clock();
    });
  }
}

TEST(SimGrid, AgreesOnTenRandomScenes) {
  constexpr int kScenes = 10;
  std::vector<Scene> scenes;
  for (unsigned seed = 1; seed <= kScenes; ++seed) scenes.push_back(random_scene(seed));
  std::vector<std::vector<double>> theirs(kScenes);
  auto* zone = sg::create_full_zone("scenes");
  for (int i = 0; i < kScenes; ++i) {
    const auto index = static_cast<std::size_t>(i);
    build(scenes[index], i, zone, theirs[index]);
  }
  zone->seal();
  sg::Engine::get_instance()->run();
  for (std::size_t i = 0; i < kScenes; ++i) {
    const auto ours = completion_times(scenes[i].capacities, scenes[i].flows);
    ASSERT_TRUE(ours);
    for (std::size_t f = 0; f < theirs[i].size(); ++f) {
      ASSERT_GT(theirs[i][f], 0);
      EXPECT_NEAR((*ours)[f].in_base() / theirs[i][f], 1, 0.001) << "flow " << f << " of scene " << i;
    }
  }
}

}  // namespace
}  // namespace ns_dist

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int simgrid_argc = 1;
  simgrid::s4u::Engine engine(&simgrid_argc, argv);
  for (const char* setting : {"network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1",
                              "network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:0"}) {
    simgrid::s4u::Engine::set_config(setting);
  }
  return RUN_ALL_TESTS();
}
