# What `cmake --install BUILD --prefix P` puts into P:
#   bin/      muster, musterd, muster-train, all_reduce_perf
#   include/  muster/*.h, and the few proto/base/*.h that they include
#   share/    muster/python/, which PyTorch's launchers start our agents by
#   lib/      libmuster.a, what needs CUDA apart, and cmake/muster/ for find_package(muster), whose target is muster::muster
#
# The archive holds every library of ours that muster::muster needs, so that users see one, and nothing of the flags
# that this tree is built with. Where there was CUDA, the nccl back end and the cuda device are archives besides that need
# CUDA's runtime; others say that there is none, and muster-config.cmake takes those that the user's machine can link.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# muster_collect(target): adds our libraries below `target` to the global property MUSTER_PARTS, and those of others to
# MUSTER_NEEDS.
function(muster_collect target)
  get_target_property(aliased ${target} ALIASED_TARGET)
  if(aliased)
    set(target ${aliased})
  endif()
  get_property(parts GLOBAL PROPERTY MUSTER_PARTS)
  if(target IN_LIST parts)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY MUSTER_PARTS ${target})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  else()
    get_target_property(links ${target} LINK_LIBRARIES)
  endif()
  foreach(link ${links})
    if(link MATCHES "^::@" OR link STREQUAL "muster_flags" OR NOT link)
      continue()  # the mark of another directory; what only this tree is built with; none
    endif()
    if(link MATCHES "^muster_runtime_(without_)?(nccl|cuda)$")
      continue()
    endif()
    if(TARGET ${link})
      get_target_property(imported ${link} IMPORTED)
      if(NOT imported)
        muster_collect(${link})
        continue()
      endif()
    endif()
    set_property(GLOBAL APPEND PROPERTY MUSTER_NEEDS ${link})
  endforeach()
endfunction()

# The last: what the archives that need CUDA need besides.
foreach(target muster_runtime muster_runtime_arguments muster_runtime_engine muster_runtime_data muster_optional_library)
  muster_collect(${target})
endforeach()
get_property(parts GLOBAL PROPERTY MUSTER_PARTS)
get_property(needs GLOBAL PROPERTY MUSTER_NEEDS)
list(REMOVE_DUPLICATES needs)
# Headers alone, and none that a public header includes.
list(FILTER needs EXCLUDE REGEX "^nlohmann_json::")

set(objects)
foreach(part ${parts})
  get_target_property(type ${part} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    get_target_property(sources ${part} SOURCES)
    list(FILTER sources INCLUDE REGEX "^\\$<TARGET_OBJECTS:")
    list(APPEND objects $<TARGET_OBJECTS:${part}> ${sources})
  endif()
endforeach()
add_library(muster_archive STATIC ${objects})
set_target_properties(muster_archive PROPERTIES OUTPUT_NAME muster LINKER_LANGUAGE CXX)

foreach(part nccl without_nccl cuda without_cuda)
  if(TARGET muster_runtime_${part})
    add_library(muster_archive_${part} STATIC $<TARGET_OBJECTS:muster_runtime_${part}>)
    set_target_properties(muster_archive_${part} PROPERTIES OUTPUT_NAME muster_${part} LINKER_LANGUAGE CXX)
    add_dependencies(muster_archive muster_archive_${part})
    install(TARGETS muster_archive_${part} ARCHIVE)
  endif()
endforeach()
if(TARGET muster_archive_cuda)
  target_sources(muster_archive_cuda PRIVATE ${MUSTER_CUDA_OBJECTS})
  add_dependencies(muster_archive_cuda muster_cuda_kernels)
endif()

# For muster-config.cmake: packages and plain libraries to look for, and what to link.
set(packages)
set(libraries)
set(links)
foreach(need ${needs})
  if(need MATCHES "^([A-Za-z]+)::")
    list(APPEND packages ${CMAKE_MATCH_1})
    list(APPEND links ${need})
  elseif(need MATCHES "^/.*/lib([^/]+)\\.(so|a)")
    list(APPEND libraries ${CMAKE_MATCH_1})
  else()
    list(APPEND links ${need})
  endif()
endforeach()
list(REMOVE_DUPLICATES packages)
list(TRANSFORM packages REPLACE "^protobuf$" "Protobuf")

# Written as lists of words.
list(JOIN packages " " muster_packages)
list(JOIN libraries " " muster_libraries)
list(JOIN links " " muster_links)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/muster-config.cmake.in ${CMAKE_BINARY_DIR}/package/muster-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/muster
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/muster-config-version.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS muster musterd RUNTIME)
if(TARGET muster-train)
  install(TARGETS muster-train RUNTIME)
endif()
if(TARGET all_reduce_perf)
  install(TARGETS all_reduce_perf RUNTIME)
endif()
install(TARGETS muster_archive ARCHIVE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/python DESTINATION ${CMAKE_INSTALL_DATADIR}/muster
        PATTERN __pycache__ EXCLUDE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/worker_runtime/include/muster TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
# tests/integration/package_test.cc compiles every public header against the installed ones.
install(FILES ${CMAKE_SOURCE_DIR}/proto/base/mono_time.h ${CMAKE_SOURCE_DIR}/proto/base/progress_board.h
              ${CMAKE_SOURCE_DIR}/proto/base/status_macros.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/proto/base)
install(FILES ${CMAKE_BINARY_DIR}/package/muster-config.cmake ${CMAKE_BINARY_DIR}/package/muster-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
