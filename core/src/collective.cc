#include "ns_dist/collective.h"

#include "ns_dist/cluster.h"

namespace ns_dist {

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSendRecv:
      return "send_recv";
  }
  return "unknown";
}

std::string_view name_of(FabricKind kind) {
  switch (kind) {
    case FabricKind::kNvlink:
      return "nvlink";
    case FabricKind::kNvswitch:
      return "nvswitch";
    case FabricKind::kXgmi:
      return "xgmi";
    case FabricKind::kPcie:
      return "pcie";
    case FabricKind::kInfiniband:
      return "infiniband";
    case FabricKind::kRoce:
      return "roce";
    case FabricKind::kEthernet:
      return "ethernet";
    case FabricKind::kEfa:
      return "efa";
    case FabricKind::kSlingshot:
      return "slingshot";
    case FabricKind::kOmniPath:
      return "omni-path";
  }
  return "unknown";
}

}  // namespace ns_dist
