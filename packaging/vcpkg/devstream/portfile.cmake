vcpkg_download_distfile(ARCHIVE
    URLS "@URL@/devstream-${VERSION}.tar.gz"
    FILENAME "devstream-${VERSION}.tar.gz"
    SHA512 @SHA512@
)
vcpkg_extract_source_archive(SOURCE_PATH ARCHIVE "${ARCHIVE}")

string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" "static" STATIC)
string(COMPARE EQUAL "${VCPKG_LIBRARY_LINKAGE}" "dynamic" SHARED)
if("cuda" IN_LIST FEATURES)
    set(CUDA DLOPEN)
else()
    set(CUDA OFF)
endif()

vcpkg_cmake_configure(
    SOURCE_PATH "${SOURCE_PATH}"
    OPTIONS
        -DDEVSTREAM_STATIC_LIBRARY=${STATIC}
        -DDEVSTREAM_SHARED_LIBRARY=${SHARED}
        -DDEVSTREAM_CUDA=${CUDA}
        -DDEVSTREAM_TESTS=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/devstream)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share" "${CURRENT_PACKAGES_DIR}/share/man"
    "${CURRENT_PACKAGES_DIR}/share/doc")
# Scripts are tools. On Windows, bin keeps the DLL; elsewhere vcpkg refuses an empty bin.
file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/tools/devstream")
foreach(tool devstream-kernels devstream-ranks)
    file(RENAME "${CURRENT_PACKAGES_DIR}/bin/${tool}" "${CURRENT_PACKAGES_DIR}/tools/devstream/${tool}")
    file(REMOVE "${CURRENT_PACKAGES_DIR}/debug/bin/${tool}")
endforeach()
if(STATIC OR NOT VCPKG_TARGET_IS_WINDOWS)
    file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin" "${CURRENT_PACKAGES_DIR}/debug/bin")
endif()
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
