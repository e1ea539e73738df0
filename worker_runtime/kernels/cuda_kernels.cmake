# Every `.cu` file: compiled by nvcc for a GPU into muster_cuda_kernels, and as plain C++ for the block emulator
# (tests/unit/worker_runtime/kernels).
set(muster_cuda_sources adamw attention bias cross_entropy elementwise embedding gelu norm rotary rounding sgd sum_of_squares swiglu)
list(TRANSFORM muster_cuda_sources REPLACE "(.+)" "${CMAKE_CURRENT_LIST_DIR}/\\1.cu")
set(MUSTER_CUDA_SOURCES ${muster_cuda_sources} CACHE INTERNAL "the block emulator's tests ask for them")

if(MUSTER_ENABLE_CUDA)
  find_package(CUDAToolkit QUIET)
endif()
if(NOT MUSTER_ENABLE_CUDA OR NOT CUDAToolkit_NVCC_EXECUTABLE OR NOT TARGET CUDA::cudart_static)
  message(STATUS "nvcc not found, or not wanted: kernels are for the host alone")
  return()
endif()

# By commands of our own: CUDA as a language of the project would be everybody's to have. Code for each architecture, and for the last one
# what later GPUs compile when it is loaded; where there is one alone, that is left as text for tests/unit/worker_runtime/cuda/ptx.
# Fused multiply-add is written out, as on the host.
set(architectures)
foreach(number ${MUSTER_CUDA_ARCHITECTURES})
  list(APPEND architectures -gencode=arch=compute_${number},code=sm_${number})
endforeach()
list(LENGTH MUSTER_CUDA_ARCHITECTURES count)
list(GET MUSTER_CUDA_ARCHITECTURES -1 last)
list(APPEND architectures -gencode=arch=compute_${last},code=compute_${last})
if(count EQUAL 1)
  list(APPEND architectures --compress-mode=none)
endif()
set(objects)
foreach(source ${muster_cuda_sources})
  get_filename_component(name ${source} NAME)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cuda
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 ${architectures} -fmad=false
            -lineinfo --Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers -I${CMAKE_SOURCE_DIR} -DMUSTER_KERNEL_ISAS=${built_isas}
            -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Compiling worker_runtime/kernels/${name} for a GPU"
    VERBATIM)
  list(APPEND objects ${object})
endforeach()
set(MUSTER_CUDA_OBJECTS ${objects} CACHE INTERNAL "deploy/install.cmake asks for them")
add_library(muster_cuda_kernels STATIC EXCLUDE_FROM_ALL ${objects} kernels/cuda_kernels.h)
set_target_properties(muster_cuda_kernels PROPERTIES LINKER_LANGUAGE CXX)
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_link_libraries(muster_cuda_kernels PUBLIC muster_runtime_kernels CUDA::cudart_static)
