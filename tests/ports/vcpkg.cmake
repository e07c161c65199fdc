# Runs the port of vcpkg without vcpkg, which has no package here: cmake -DPORT=FOLDER -DROOT=FOLDER -DLINKAGE=static|dynamic -P vcpkg.cmake
# The functions below do what vcpkg's functions of these names document, for one configuration; CMake finds the result in ROOT/packages.
cmake_minimum_required(VERSION 3.18)
file(READ ${PORT}/vcpkg.json manifest)
string(JSON VERSION GET "${manifest}" version-semver)
string(JSON PORT_NAME GET "${manifest}" name)
set(CURRENT_PACKAGES_DIR ${ROOT}/packages)
set(VCPKG_LIBRARY_LINKAGE ${LINKAGE})

function(vcpkg_download_distfile out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  file(DOWNLOAD ${arg_URLS} ${ROOT}/${arg_FILENAME} EXPECTED_HASH SHA512=${arg_SHA512})
  set(${out} ${ROOT}/${arg_FILENAME} PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT ${arg_ARCHIVE} DESTINATION ${ROOT}/source)
  file(GLOB folder ${ROOT}/source/*)
  set(${out} ${folder} PARENT_SCOPE)
endfunction()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  run(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${ROOT}/build -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} -DCMAKE_INSTALL_LIBDIR=lib
    -DCMAKE_INSTALL_DOCDIR=share/doc/devstream ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  run(${CMAKE_COMMAND} --build ${ROOT}/build)
  run(${CMAKE_COMMAND} --install ${ROOT}/build)
endfunction()

# vcpkg moves the files to share/PORT, beside those that are there, and lets them compute the prefix from there, which is one folder less.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  file(GLOB files ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*)
  file(COPY ${files} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT_NAME})
  file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/lib/cmake)
  set(targets ${CURRENT_PACKAGES_DIR}/share/${PORT_NAME}/devstream-targets.cmake)
  file(READ ${targets} text)
  string(REPLACE "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n"
    "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\n" text "${text}")
  file(WRITE ${targets} "${text}")
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share/${PORT_NAME})
  configure_file(${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/${PORT_NAME}/copyright COPYONLY)
endfunction()

set(PORT_FILE ${PORT}/portfile.cmake)
set(PORT ${PORT_NAME})
include(${PORT_FILE})
