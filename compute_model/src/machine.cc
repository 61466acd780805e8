#include "machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "ns_dist/internal/number_from.h"

namespace ns_dist {
namespace {

using namespace units;

// Boards with GDDR: up to which share of the boost clock the voltage is at its least, and watts that the board draws
// whatever the clock. Source: tensor_ceiling.
struct Voltage {
  double least_share = 0, fixed_watts = 0;
};
struct VoltageRange {
  Voltage least, chosen, most;  // by what they let the tensor units do
};
VoltageRange voltage_of(int process_nm) {
  if (process_nm > 5) return {{0.68, 0}, {0.68, 0}, {0.68, 0}};
  return {{0.65, 0}, {0.8, 32}, {0.97, 65}};
}

// The constant c of the law below, W s^3 per FLOP a clock, for boards with HBM.
//
// AMD's at 5 nm goes through the "max-achievable FLOPS" that AMD measured and published (ROCm blogs, "Measuring
// Max-Achievable FLOPs, part 2", February 2025, BF16): 708 TFLOP/s on MI300X and 843 on MI325X, which gives 8.2e-31 and
// 6.5e-31. They are the best of many shapes, as 794 TFLOP/s is on H100, which is 1.045 times H100's ceiling here; the
// mean of the two times 1.045^3 is the constant. At 3 nm TSMC's published power at equal speed, N3E -34 % from N5, and
// of NVIDIA's 4NP as N4P -22 % from N5.
double cube_law_cost(const Gpu& gpu) {
  if (gpu.vendor == "amd" && gpu.process_nm <= 5) return gpu.process_nm > 4 ? 8.3e-31 : 8.3e-31 * 0.66;
  if (gpu.process_nm > 10) return 3.3e-30;
  if (gpu.process_nm > 7) return 3.3e-30 * 0.65;
  if (gpu.process_nm > 5) return 1.34e-30;
  return gpu.process_nm > 3 ? 4.66e-31 : 4.66e-31 * (0.66 / 0.78);
}

// FLOP a clock of an SM's tensor units, 16-bit operands, by compute capability: data sheets' peaks over SMs and clock
// (configs/gpus). GeForce boards of 8.6, 8.9 and 12.0 have half the peak, but the same units.
constexpr std::array<std::pair<std::string_view, double>, 14> kFlopPerClock = {{
    {"7.0", 1024},
    {"7.5", 1024},
    {"8.0", 2048},
    {"8.6", 1024},
    {"8.9", 1024},
    {"9.0", 4096},
    {"10.0", 8192},
    {"10.3", 8192},
    {"10.7", 8192},
    {"12.0", 1024},
    {"gfx908", 1024},
    {"gfx90a", 1024},
    {"gfx942", 2048},
    {"gfx950", 4096},
}};

// FLOP a clock of an SM is a power of two on every GPU so far; nominal peaks are stated at clocks up to 8 % below the
// boost clock. A figure that is further from all powers of two, of a GPU that is only planned, moves steadily from one
// to the next, so that no small change of a data sheet changes the forecast by much. It is at least what the compute
// capability has: a data sheet with the same peaks at a higher clock takes no units away.
double flop_per_clock(const Gpu& gpu, double stated) {
  constexpr double kMisstated = 0.2;  // log2; 13 %
  const double exponent = std::log2(stated), nearest = std::round(exponent), off = exponent - nearest;
  const double beyond = std::max(std::abs(off) - kMisstated, 0.0) * 0.5 / (0.5 - kMisstated);
  double found = std::exp2(nearest + std::copysign(beyond, off));
  for (const auto& [capability, least] : kFlopPerClock) {
    if (gpu.compute_capability == capability) found = std::max(found, least);
  }
  return found;
}

// What the board's power lets the tensor units do. Dynamic power is c U V^2 f for U FLOP a clock; along the part of the
// curve where voltage follows frequency that is c U f^3, so that f = (P / (c U))^(1/3) and the rate U f = U^(2/3)
// (P / c)^(1/3). c is W s^3 per FLOP a clock, in BF16, large GEMMs of published kernel tables: 4.5e-31 to 5.0e-31 on
// H100, H200, B200, B300 and GB200 (one process, two architectures, 700 to 1,200 W: the law holds to 4 %), 1.34e-30 on
// A100, 8.7e-31 on L40S, which differs from the others in more than GDDR: its tensor units are fed from registers.
// Older nodes by TSMC's published scaling, N7 -60 % from 16FF+. Dies on boards with GDDR boost a quarter higher in the
// same process, so that their limits hold them where the voltage is at its least and the clock follows power itself.
// At 8 nm below 0.68 of the boost clock, by the base clocks that data sheets print: A10 and A40, the same die, 885 and
// 1,305 MHz with 2.08 and 3.57 W a SM. At 4 nm the same clocks say that the voltage has not begun to rise at 0.65: L40S
// and RTX PRO 6000, 1,110 and 1,590 MHz with 2.46 and 3.19 W. From 0.97 on it rises with the clock: RTX 4090 takes 268,
// 305 and 347 W in games at 2,443, 2,602 and 2,726 MHz (QuasarZone, October 2022), which is 65 W and the cube of the
// clock within 2 %. L40S does not tell how much of its power is fixed, because it was measured at one limit. The middle
// of what this leaves open is taken, 0.8 and 32 W, and decides for RTX PRO 6000 alone; its interval has the rest. On
// boards with HBM no such range was measured: GB200 has a sixth more power a FLOP than B200 and runs 4 % faster, in
// bursts and for long.
double tensor_ceiling(const Gpu& gpu, bool gddr, double bf16_peak, const Voltage& voltage) {
  const double watts = gpu.board_power / W, clock = gpu.boost_clock / Hz;
  if (!(watts > 0) || !(clock > 0) || !(bf16_peak > 0) || gpu.process_nm <= 0) return bf16_peak;
  const double units = flop_per_clock(gpu, bf16_peak / clock / gpu.sm_count) * gpu.sm_count;
  if (!gddr) {
    // With the clock, the frequency at which the voltage rises moves: f^3 by the cube of what a FLOP's energy saves.
    const double cost = cube_law_cost(gpu) * gpu.flop_energy * gpu.flop_energy * gpu.flop_energy;
    return std::min(bf16_peak, std::cbrt(units * units * watts / cost));
  }
  // Joule a FLOP at the least voltage, the whole board's. At 4 nm L40S, at its limit. At 8 nm a bound: A40 reaches 0.80
  // of its peak with its largest products, which are its fastest. At 12 nm the constant of the other boards times 1.88,
  // at T4's clock.
  const double joules = (gpu.process_nm > 10 ? 2.6e-12 : gpu.process_nm > 5 ? 1.50e-12 : 1.70e-12) * gpu.flop_energy;
  constexpr double kMeasuredWatts = 350;  // L40S: boards with more power spend the fixed part of it once
  const double scaled = watts > kMeasuredWatts
                            ? kMeasuredWatts * (watts - voltage.fixed_watts) / (kMeasuredWatts - voltage.fixed_watts)
                            : watts;
  const double least = voltage.least_share * clock, linear = scaled / (units * joules);
  return std::min(bf16_peak, units * (linear <= least ? linear : std::cbrt(linear * least * least)));
}

// Products of a format in the time of one in BF16, on the same units and for the same energy: tensor units read
// operands of half the bits twice as fast. Two generations have units for 4 bits, or for 8 and 4, beyond that.
double products_for_one(const Gpu& gpu, DType dtype) {
  const bool ultra = gpu.architecture == "blackwell-ultra", rubin = gpu.architecture == "rubin";
  switch (dtype) {
    case DType::kTf32:
      return 0.5;
    case DType::kFp8:
      return rubin ? 4.375 : 2;
    case DType::kFp4:
      return rubin ? 8.75 : ultra ? 6 : 4;
    default:
      return 1;
  }
}

double half_rate_of(const Gpu& gpu) {
  return std::max(gpu.tensor[DType::kBf16], gpu.tensor[DType::kFp16]) / (FLOP / s);
}

// Machine::rated_share of a format that is as fast as 16 bits at `half_rate`. Peaks are stated at clocks up to 8 %
// below the boost clock.
double rated_share_of(const Gpu& gpu, double half_rate) {
  constexpr double kStatedClock = 0.92;
  const double clock = gpu.boost_clock / Hz;
  if (!(half_rate > 0) || !(clock > 0)) return 1;
  const double stated = half_rate / clock / gpu.sm_count;
  return std::min(1.0, stated / (kStatedClock * flop_per_clock(gpu, stated)));
}

// FP32 lanes that one warp scheduler feeds: 16 on Volta, Turing and GA100, which leaves every other issue slot to loads
// and addresses; 32 on Pascal, GA10x, Ada, Hopper and Blackwell (CUDA C++ Programming Guide, arithmetic throughput by
// compute capability). Shares: medians of the largest tiles in NeuSight's FP32 training tables, A100 0.90, V100 0.93,
// P100 0.85, whose schedulers issue a load beside a product. cuBLAS runs the kernels written for A100 on what came
// after it: with twice as many lanes the products take half of the cycles, what A100 waits for takes as many as there,
// and loads no longer hide behind products: four of them (16 bytes each) for the 64 products of a thread's 8 x 8 tile.
// AMD: of the FP32 matrix peak, MI100 and MI210, large single products (0.66-0.68).
double issue_share_of(const Gpu& gpu) {
  constexpr double kAmpere = 0.90, kLoads = 4.0 / 64;
  constexpr double kAmpereKernelsOn32Lanes = 1 / (1 + 2 * (1 / kAmpere - 1) + kLoads);  // 0.778
  if (gpu.vendor == "amd") return 0.68;
  if (gpu.architecture == "pascal") return 0.85;
  if (gpu.architecture == "volta" || gpu.architecture == "turing") return 0.93;
  return gpu.compute_capability == "8.0" ? kAmpere : kAmpereKernelsOn32Lanes;
}

// Joules of an FP32 multiply-add's half on the vector units at the lowest voltage, registers and caches included. 16
// and 12 nm: whole models and products on P4 and T4, which run against their power limit. Carried on by TSMC's
// published power at equal speed: N7 -50 % from 12FFN (-60 % from 16FF+, which 12FFC betters by 20 %), N5 -30 % from
// N7, 4N about another 10 %.
double flop_joules_of(int process_nm) {
  constexpr double kAt16 = 18.5e-12, kAt12 = 13.2e-12;
  if (process_nm <= 0 || process_nm > 12) return kAt16;
  if (process_nm > 10) return kAt12;
  if (process_nm > 5) return kAt12 * 0.5;
  return kAt12 * 0.5 * 0.7;
}
// A card that runs without pause is warmer and leaks more: T4's whole models against the sums of their kernels.
constexpr double kSustainedJoules = 1.09;
// Between half of the boost clock and the boost clock the voltage rises by about this share. V100 sets the bound: at
// 250 W it still holds its boost clock.
constexpr double kVoltageRise = 0.08;
// Power without work as a share of the limit: 25-40 W of 250 W (V100, A100 idle with a context, nvidia-smi), 10 W
// of 70.
constexpr double kIdleShare = 0.12;
// DRAM access and transport: HBM2 3.9 pJ a bit, GDDR5 14 pJ (O'Connor et al. 2017, "Fine-grained DRAM", MICRO),
// GDDR6 7.5 pJ (Micron), and as much again on the chip.
double byte_joules_of(bool gddr) { return gddr ? 110e-12 : 60e-12; }

// Share of the nominal bandwidth that long streaming kernels reach in a running model: V100 and A100 0.91-0.93, GDDR
// with ECC in line 0.76-0.78 (P4, T4), P100's first HBM2 0.755, AMD 0.86. Medians over kernels of at least 0.2 ms, from
// NeuSight's kernel data. GDDR without ECC as HBM: RTX 4090 moves 918 to 924 of 1,008 GB/s (NVIDIA's
// p2pBandwidthLatencyTest, in tinygrad/open-gpu-kernel-modules issue 6; clpeak, krrishnarraj/clpeak issue 106).
double bandwidth_efficiency(const Gpu& gpu) {
  if (gpu.ecc_in_line) return 0.77;
  if (gpu.vendor == "amd") return 0.86;
  return gpu.architecture == "pascal" ? 0.755 : 0.91;
}

// A100 keeps two L2 partitions, each a copy of what its SMs read (NVIDIA A100 white paper, "L2 cache"; its layer norms
// are 4.4 % off with the half, 6.3 % with all of it). No data sheet says so of later GPUs.
bool two_partitions(const Gpu& gpu) { return gpu.compute_capability == "8.0"; }
constexpr double kResidentShare = 0.7;   // L2 is never wholly one tensor's
constexpr double kL2BytesPerClock = 32;  // an SM's 64, half of them from the far side

// The slower of two pipes, rounded where they meet: tiles of one product load and store in step, so they overlap worse
// than independent kernels (order 3 against 4).
double overlap_of(double compute, double memory) {
  const double larger = std::max(compute, memory), smaller = std::min(compute, memory);
  if (!(larger > 0)) return 0;
  const double ratio = smaller / larger;
  return larger * std::cbrt(1 + ratio * ratio * ratio);
}

// CUDA C++ Programming Guide, "Technical specifications per compute capability": maximum number of resident threads per
// SM.
double resident_threads_of(const Gpu& gpu) {
  const std::string_view capability = gpu.compute_capability;
  if (capability == "7.5") return 1024;
  return capability == "8.6" || capability == "8.9" || capability.starts_with("12.") ? 1536 : 2048;
}

// Errors: what a forecast divides by is missing, or a number is none.
Result<void> check_data_sheet(const Gpu& gpu) {
  const auto bad = [&](std::string_view what, std::string_view expected) {
    Error error;
    error.message = "GPU \"" + gpu.id + "\" has no usable " + std::string(what);
    error.where = gpu.id;
    error.expected = std::string(expected);
    return fail(error);
  };
  const auto is_told = [](double value) { return value >= 0 && std::isfinite(value); };  // or 0
  if (gpu.sm_count <= 0) return bad("sm_count", "a whole number of at least 1");
  const double bandwidth = gpu.memory_bandwidth / (B / s);
  if (!is_told(bandwidth) || bandwidth == 0) return bad("memory bandwidth", "a positive bandwidth");
  for (const auto& [what, value] : {std::pair("boost clock", gpu.boost_clock / Hz),
                                    {"base clock", gpu.base_clock / Hz},
                                    {"L2 cache", gpu.l2_cache / B},
                                    {"board power", gpu.board_power / W},
                                    {"vector peak", gpu.vector[DType::kFp32] / (FLOP / s)}}) {
    if (!is_told(value)) return bad(what, "a finite number, or 0 where it is not told");
  }
  bool computes = false;
  for (const DType dtype : kAllDTypes) {
    const double peak = gpu.matrix_peak(dtype) / (FLOP / s);
    if (!is_told(peak)) return bad("peak for " + std::string(name_of(dtype)), "a finite rate");
    computes |= peak > 0;
  }
  if (!computes) return bad("rate", "a peak for at least one number format");
  return {};
}

// Peaks of products, and what the board's power leaves of them.
void set_matrix_rates(Machine& machine) {
  const Gpu& gpu = machine.gpu;
  const double half_rate = half_rate_of(gpu);
  const VoltageRange voltage = voltage_of(gpu.process_nm);
  const auto ceiling = [&](double peak, const Voltage& each) { return tensor_ceiling(gpu, machine.gddr, peak, each); };
  if (half_rate > 0) {
    machine.ceiling_doubt = std::log(ceiling(half_rate, voltage.most) / ceiling(half_rate, voltage.least)) / 2;
  }
  for (const DType dtype : kAllDTypes) {
    const auto i = static_cast<std::size_t>(dtype);
    const double peak = gpu.matrix_peak(dtype) / (FLOP / s);
    // Each format by itself: what a data sheet says of another one makes it no slower. FP32 and FP64, whose units are
    // others on each generation, in proportion to BF16.
    const bool on_tensor_units = gpu.tensor[dtype] > FlopsPerSecond();
    const bool by_itself = on_tensor_units && dtype != DType::kFp32 && dtype != DType::kFp64;
    const double share = products_for_one(gpu, dtype);
    machine.matrix_peak[i] = machine.matrix_ceiling[i] = peak;
    machine.rated_shares[i] = by_itself ? rated_share_of(gpu, peak / share) : 1;
    if (by_itself) {
      machine.matrix_ceiling[i] = share * ceiling(peak / share, voltage.chosen);
    } else if (on_tensor_units && half_rate > 0) {
      machine.matrix_ceiling[i] = peak * ceiling(half_rate, voltage.chosen) / half_rate;
    }
  }
}

// Of FP32 arithmetic. Where no data sheet has it: H100's and A100's ratio of BF16 to FP32, or of the fastest format.
double vector_peak_of(const Gpu& gpu) {
  const double told = gpu.vector[DType::kFp32] / (FLOP / s);
  if (told > 0) return told;
  const FlopsPerSecond half = max(gpu.matrix_peak(DType::kBf16), gpu.matrix_peak(DType::kFp16));
  FlopsPerSecond fastest;
  for (const DType dtype : kAllDTypes) fastest = max(fastest, gpu.matrix_peak(dtype));
  return (half > FlopsPerSecond() ? half : fastest) / (FLOP / s) / 16;
}

// Fixed cost of a small kernel: 1.6-2.5 us in CUDA graphs; back to back in a stream, the dependent launch adds about 1
// us.
constexpr double kBurstLaunch = 2e-6, kStreamGap = 1e-6;

}  // namespace

FlopsPerSecond powered_tensor_rate(const Gpu& gpu) {
  return tensor_ceiling(gpu, gpu.has_gddr(), half_rate_of(gpu), voltage_of(gpu.process_nm).chosen) * (FLOP / s);
}

double Machine::vector_rate(DType dtype) const {
  const FlopsPerSecond packed = dtype == DType::kFp64 ? FlopsPerSecond() : gpu.vector[dtype];
  return std::max(vector_peak, packed / (FLOP / s));
}

double Machine::memory_seconds(double bytes) const {
  // Least recently used goes first: a stream longer than the cache finds nothing of itself.
  const double resident = std::clamp(2 * resident_bytes - bytes, 0.0, bytes);
  return std::max((bytes - resident) / achieved_bandwidth, 0.0) + resident / l2_bandwidth;
}

PoweredTime Machine::powered(double compute, double memory, double flops, double bytes, double weight,
                             double limit) const {
  PoweredTime free{overlap_of(compute, memory), 1};
  if (!(watts > 0) || free.seconds > limit) return free;
  const double budget = watts - idle_watts, moved = bytes * byte_joules, products = flops * flop_joules * weight;
  const auto energy = [&](double clock) {
    const double voltage = 1 + kVoltageRise * std::clamp((clock - 0.5) / 0.5, 0.0, 1.0);
    return moved + products * voltage * voltage;
  };
  if (energy(1) <= budget * free.seconds) return free;
  double low = 0.5, high = 1;
  const double slow = overlap_of(compute / low, memory);
  if (energy(low) > budget * slow) {  // at the lowest voltage: only the clock is left
    const double seconds = energy(low) / budget;
    return {seconds, std::min(low, compute / seconds)};
  }
  // The clock at which it would take just `limit`: if power does not pay for that, it takes longer.
  const double wanted = compute / std::cbrt(limit * limit * limit - memory * memory * memory);
  if (wanted > low && energy(wanted) > budget * limit) return {std::numeric_limits<double>::infinity(), low};
  // As energy(clock) > budget * overlap_of(compute / clock, memory), in cubes.
  const auto cube = [](double x) { return x * x * x; };
  for (int step = 0; step < 24; ++step) {
    const double middle = (low + high) / 2;
    (cube(energy(middle) / budget) > cube(compute / middle) + cube(memory) ? high : low) = middle;
  }
  return {overlap_of(compute / low, memory), low};
}

double capability_of(const Gpu& gpu) { return number_from<double>(gpu.compute_capability).value_or(0); }

Result<Machine> make_machine(const Gpu& gpu, Mode mode) {
  NS_TRY_VOID(check_data_sheet(gpu));
  Machine machine;
  machine.gpu = gpu;
  machine.mode = mode;
  machine.sms = gpu.sm_count;
  const double capability = gpu.vendor == "nvidia" ? capability_of(gpu) : 0;
  machine.persistent_kernels = capability >= 9 && capability < 12;
  machine.tensor_memory = capability >= 10 && capability < 12;
  machine.resident_threads = resident_threads_of(gpu);
  machine.l2 = gpu.l2_cache / B;
  machine.gddr = gpu.has_gddr();
  machine.bandwidth = gpu.memory_bandwidth / (B / s);
  machine.launch = kBurstLaunch + (mode == Mode::kSustained ? kStreamGap : 0);
  set_matrix_rates(machine);
  machine.vector_peak = vector_peak_of(gpu);
  // Special function units: twice as many on Blackwell Ultra (NVIDIA "Inside Blackwell Ultra", 2025: 2x attention-layer
  // acceleration).
  machine.clock_rate = gpu.boost_clock / Hz > 0 ? gpu.boost_clock / Hz : 1.5e9;
  machine.exponential_rate =
      (gpu.architecture == "blackwell-ultra" ? 2 : 1) * Machine::kExponentials * machine.clock_rate * machine.sms;
  machine.issue_share = issue_share_of(gpu);
  machine.l2_bandwidth = std::max(machine.bandwidth, kL2BytesPerClock * machine.sms * machine.clock_rate);
  machine.resident_bytes = kResidentShare * machine.l2 / (two_partitions(gpu) ? 2 : 1);
  machine.watts = gpu.board_power / W;
  machine.idle_watts = kIdleShare * machine.watts;
  // Matrix units fetch operands once for many products: about half of the energy is the arithmetic's.
  if (gpu.tensor[DType::kFp32] > FlopsPerSecond()) machine.matrix_energy = 0.6;
  machine.flop_joules =
      flop_joules_of(gpu.process_nm) * gpu.flop_energy * (mode == Mode::kSustained ? kSustainedJoules : 1);
  machine.byte_joules = byte_joules_of(machine.gddr);
  machine.achieved_bandwidth = machine.bandwidth * bandwidth_efficiency(gpu);
  return machine;
}

}  // namespace ns_dist
