// Lets hwloc be linked without libudev, which has no archive: hwloc asks it for names of block
// devices alone, and takes a null for "there is no udev".
extern "C" {

struct udev;
struct udev_device;

udev* udev_new() { return nullptr; }
udev* udev_unref(udev* /*udev*/) { return nullptr; }
udev_device* udev_device_new_from_subsystem_sysname(udev* /*udev*/, const char* /*subsystem*/,
                                                    const char* /*name*/) {
  return nullptr;
}
const char* udev_device_get_property_value(udev_device* /*device*/, const char* /*key*/) {
  return nullptr;
}
udev_device* udev_device_unref(udev_device* /*device*/) { return nullptr; }

}  // extern "C"
