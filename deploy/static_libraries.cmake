# Programs take gRPC, Protobuf, Abseil, OpenSSL and their kin from the archives that Debian ships beside the shared
# libraries: resolving some sixty shared libraries is most of what a launcher otherwise does when it starts (12 ms of a
# trivial gRPC program, 3 when it is linked statically). What has no archive stays shared.

# muster_prefer_archive(target): lets an imported target that names libX.so stand for libX.a, where there is one.
function(muster_prefer_archive target)
  foreach(property IMPORTED_LOCATION IMPORTED_LOCATION_DEBUG IMPORTED_LOCATION_NONE IMPORTED_LOCATION_RELEASE)
    get_target_property(library ${target} ${property})
    string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${library}")
    if(library AND NOT archive STREQUAL library AND EXISTS "${archive}")
      set_target_properties(${target} PROPERTIES ${property} "${archive}")
    endif()
  endforeach()
endfunction()

get_property(imported DIRECTORY ${CMAKE_SOURCE_DIR} PROPERTY IMPORTED_TARGETS)
foreach(target ${imported})
  if(target MATCHES "^(absl|gRPC|protobuf|OpenSSL|ZLIB|c-ares|re2)::")
    muster_prefer_archive(${target})
  endif()
endforeach()

# gRPC's package finds re2 through pkg-config, as "-lre2".
find_library(MUSTER_RE2_ARCHIVE libre2.a)
if(TARGET re2::re2 AND MUSTER_RE2_ARCHIVE)
  set_target_properties(re2::re2 PROPERTIES INTERFACE_LINK_LIBRARIES ${MUSTER_RE2_ARCHIVE})
endif()

# libdw stands in pkg-config's file as "-ldw"; its archive needs those of what it reads compressed sections with.
set(libdw_archives)
foreach(name dw elf bz2 lzma z)
  find_library(MUSTER_${name}_ARCHIVE lib${name}.a)
  list(APPEND libdw_archives "${MUSTER_${name}_ARCHIVE}")
endforeach()
if(TARGET PkgConfig::libdw AND NOT libdw_archives MATCHES "NOTFOUND")
  set_target_properties(PkgConfig::libdw PROPERTIES INTERFACE_LINK_LIBRARIES "${libdw_archives}")
endif()

# hwloc reads names of block devices through libudev, which has no archive: muster_no_udev is in its place.
set(needs_of_hwloc muster_no_udev)
foreach(name hwloc sqlite3)
  find_library(MUSTER_${name}_ARCHIVE lib${name}.a)
  if(MUSTER_${name}_ARCHIVE)
    set_target_properties(PkgConfig::${name} PROPERTIES INTERFACE_LINK_LIBRARIES "${MUSTER_${name}_ARCHIVE};${needs_of_${name}};m")
  endif()
endforeach()
