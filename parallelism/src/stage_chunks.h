// What the model chunks of each pipeline stage keep from a forward pass for its backward pass.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "shape.h"

namespace ns_dist {

// Layers whose weights or activations are on a GPU at one time where they are elsewhere otherwise: the one that
// computes, and the next.
inline constexpr double kLayersUnderWay = 2;

// What the chunks of a stage keep, and what of the stage depends on its layers.
struct StageChunks {
  std::vector<ChunkBytes> chunks;
  double largest_parameters = 0;                      // of one layer on a rank, those that are trained
  double largest_held = 0;                            // trained or frozen
  double layer_parameters = 0, layer_frozen = 0;      // of all layers: the rest is embedding and loss
  double largest_chunk = 0, largest_of_replicas = 0;  // of one chunk and one layer, trained and on other ranks, too
  double largest_gathered = 0, layer_gathered = 0;    // of these, what ZeRO 3 gathers, trained or frozen
  std::vector<ChunkBytes> away;                       // layers that the host keeps, in place of bytes; empty where none
  std::vector<ChunkBytes> largest_away;               // of these, those that keep most
  double most_kept = 0, next_kept = 0;                // by each of these, and by the next smaller ones
  double cached = 0;                                  // keys and values of all layers, under ParallelPlan::kv_cache
  double under_way = 0;                               // of layers that the host keeps: those on their way, or in use

  // So many layers of a chunk are with the host, which keep so many bytes each.
  void add_away(std::size_t chunk, double bytes, double count);
};

// What ZeRO 3 gathers: experts that no other rank has stay where they are, unless their shards have another format or
// lie on the host.
double gathered_parameters(const ParallelPlan& plan, const RankParameters& trained, const RankParameters& frozen);

// By stage. `layers` by position.
std::vector<StageChunks> kept_by_stage(const Shape& shape, const Seats& seats, std::span<const LayerRange> layers,
                                       const ModelParts& parts);

}  // namespace ns_dist
