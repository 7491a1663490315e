// libhdf5, loaded when it is first needed and invisible to everybody else.
//
// A process may well hold another HDF5: h5py brings its own. Two of them linked in the ordinary way would answer each
// other's calls, since torch.ops.load_library makes symbols global. So it is opened here with a scope of its own.
// Only hdf5.h is needed to build.
#pragma once
#define H5_USE_110_API  // the functions and structures of HDF5 1.10, in any later version too
#include "csrc/base/fork_safe_mutex.h"

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

namespace spikeforge::nir {

struct Hdf5 {
  // Throws std::runtime_error if the library does not exist, or is older than 1.10.5. A version later than the header's
  // works, because the functions used here keep their meaning of 1.10. The first call determines the file: `file`, or
  // if it is empty SPIKEFORGE_HDF5, or else the system's library.
  static const Hdf5& get(const std::string& file = "");

  // Names such as H5Literate are macros for H5Literate1 in later versions: expanded here and where they are called.
#define SPIKEFORGE_HDF5(name) decltype(&::name) name = nullptr;
#define SPIKEFORGE_HDF5_ID(name) hid_t name = H5I_INVALID_HID;
#include "csrc/nir/hdf5_functions.def"
  herr_t (*set_file_locking)(hid_t, hbool_t, hbool_t) = nullptr;  // from 1.10.7; null before

 private:
  explicit Hdf5(const std::string& file);
};

// H5F_ACC_RDONLY and H5F_ACC_TRUNC of hdf5.h are macros that call the library by name.
constexpr unsigned open_to_read = 0;
constexpr unsigned open_to_replace = 2;

inline const Hdf5& h5() { return Hdf5::get(); }

// One caller at a time, since libhdf5 may be built without locks; and libhdf5 prints nothing meanwhile.
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
  // False where what was pending could not be written.
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
