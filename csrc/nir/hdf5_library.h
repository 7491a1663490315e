// libhdf5, loaded when it is first needed, and isolated from other libraries.
//
// A process may contain another HDF5, such as the one of h5py. With ordinary linking, their calls would be mixed,
// because torch.ops.load_library makes symbols global. Therefore the library is opened with a separate scope. Only
// hdf5.h is needed to build.
#pragma once
#define H5_USE_110_API  // selects the API of HDF5 1.10 in later versions too
#include "csrc/base/fork_safe_mutex.h"

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace spikeforge::nir {

struct Hdf5 {
  // Returns the library, which the first call loads from `file`, or if that is empty from SPIKEFORGE_HDF5, or else from
  // the system. Throws std::runtime_error if it does not exist or is older than 1.10.5. Versions newer than the header
  // work, because the functions used here keep their behaviour of 1.10.
  static const Hdf5& get(const std::string& file = "");

  // Names such as H5Literate are macros for H5Literate1 in later versions: they are expanded both here and in calls.
#define SPIKEFORGE_HDF5(name) decltype(&::name) name = nullptr;
#define SPIKEFORGE_HDF5_ID(name) hid_t name = H5I_INVALID_HID;
#include "csrc/nir/hdf5_functions.def"
  herr_t (*set_file_locking)(hid_t, hbool_t, hbool_t) = nullptr;  // since 1.10.7; null in older versions

 private:
  explicit Hdf5(const std::string& file);
};

// Used in place of H5F_ACC_RDONLY and H5F_ACC_TRUNC of hdf5.h, which are macros that call the library.
constexpr unsigned open_to_read = 0;
constexpr unsigned open_to_replace = 2;

inline const Hdf5& h5() { return Hdf5::get(); }

// Holds a lock, because libhdf5 may be built without thread safety, and disables its error output.
class Hdf5Session {
 public:
  Hdf5Session();
  ~Hdf5Session();
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;

 private:
  std::unique_lock<ForkSafeMutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_to_ = nullptr;
};

// libhdf5's innermost reason for the failure of the last call, in a form for messages.
std::string hdf5_reason();

// Owns a handle, and closes it.
template <auto Hdf5::*Close> class Hid {
 public:
  explicit Hid(hid_t id = H5I_INVALID_HID) : id_(id) {}
  Hid(Hid&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hid& operator=(Hid&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Hid() { close(); }

  explicit operator bool() const { return id_ >= 0; }
  hid_t get() const { return id_; }
  // Returns false if pending data could not be written.
  bool close() {
    if (id_ < 0) return true;
    return (Hdf5::get().*Close)(std::exchange(id_, H5I_INVALID_HID)) >= 0;
  }

 private:
  hid_t id_;
};
using FileId = Hid<&Hdf5::H5Fclose>;
using GroupId = Hid<&Hdf5::H5Gclose>;
using AttributeId = Hid<&Hdf5::H5Aclose>;
using ObjectId = Hid<&Hdf5::H5Oclose>;
using DatasetId = Hid<&Hdf5::H5Dclose>;
using SpaceId = Hid<&Hdf5::H5Sclose>;
using TypeId = Hid<&Hdf5::H5Tclose>;
using PropertiesId = Hid<&Hdf5::H5Pclose>;

}  // namespace spikeforge::nir
