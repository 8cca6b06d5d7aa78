# The cffi extension rdmaring._rdmaring, against librdmaring in the folder beside it.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

set(extension_source "${CMAKE_CURRENT_BINARY_DIR}/_rdmaring.c")
add_custom_command(
	OUTPUT "${extension_source}"
	COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/make_extension.py"
		"${CMAKE_CURRENT_SOURCE_DIR}/include/rdmaring_verdict.h"
		"${CMAKE_CURRENT_SOURCE_DIR}/include/rdmaring.h" "${CMAKE_CURRENT_SOURCE_DIR}/include/rdmaring_link.h"
		"${CMAKE_CURRENT_SOURCE_DIR}/include/rdmaring_lists.h"
		"${extension_source}"
	DEPENDS make_extension.py include/rdmaring_verdict.h include/rdmaring.h include/rdmaring_link.h include/rdmaring_lists.h
	VERBATIM)

# cffi keeps to the limited API, except on free-threaded Python, which has none.
execute_process(
	COMMAND "${Python_EXECUTABLE}" -c
		"import sysconfig as s; print(s.get_config_var('EXT_SUFFIX') if s.get_config_var('Py_GIL_DISABLED') else '.abi3.so')"
	OUTPUT_VARIABLE extension_suffix OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

add_library(rdmaring_extension MODULE "${extension_source}")
target_link_libraries(rdmaring_extension PRIVATE rdmaring Python::Module)
target_include_directories(rdmaring_extension PRIVATE include)
target_compile_options(rdmaring_extension PRIVATE ${sanitize_options})
target_link_options(rdmaring_extension PRIVATE ${sanitize_options})
set_target_properties(rdmaring_extension PROPERTIES
	PREFIX "" OUTPUT_NAME _rdmaring SUFFIX "${extension_suffix}"
	BUILD_RPATH "${CMAKE_CURRENT_BINARY_DIR}" INSTALL_RPATH "$ORIGIN/lib")
install(TARGETS rdmaring_extension LIBRARY DESTINATION rdmaring)
