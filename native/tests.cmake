# Each tests/test_*.c is one executable made with the library's sources, so tests reach what is not exported.
# Under `thread` only the threaded ones, test_thread_*.c, are built; under `address` only the others.
file(GLOB test_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tests/test_*.c")

if(RDMARING_SANITIZE STREQUAL "address")
	list(FILTER test_sources EXCLUDE REGEX "/test_thread_[^/]*$")
elseif(RDMARING_SANITIZE STREQUAL "thread")
	list(FILTER test_sources INCLUDE REGEX "/test_thread_[^/]*$")
elseif(RDMARING_SANITIZE STREQUAL "fuzzer")
	set(test_sources "")
endif()

target_compile_options(rdmaring_objects PRIVATE -UNDEBUG)
if(RDMARING_SANITIZE STREQUAL "fuzzer")
	target_compile_options(rdmaring_objects PRIVATE -fsanitize=fuzzer-no-link)
endif()
add_library(rdmaring_tested STATIC $<TARGET_OBJECTS:rdmaring_objects>)
target_link_libraries(rdmaring_tested PUBLIC rdmaring_flags)
target_include_directories(rdmaring_tested PUBLIC tests)
target_compile_options(rdmaring_tested PUBLIC -UNDEBUG ${sanitize_options})
target_link_options(rdmaring_tested PUBLIC ${sanitize_options})

add_custom_target(native_tests) # builds them and nothing else
foreach(source IN LISTS test_sources)
	get_filename_component(name "${source}" NAME_WE)
	add_executable(${name} "${source}")
	target_link_libraries(${name} PRIVATE rdmaring_tested)
	add_dependencies(native_tests ${name})
	add_test(NAME ${name} COMMAND ${thread_prefix} $<TARGET_FILE:${name}>)
	set_tests_properties(${name} PROPERTIES TIMEOUT 120 ENVIRONMENT
		"ASAN_OPTIONS=detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1 second_deadlock_stack=1")
endforeach()

if(RDMARING_SANITIZE STREQUAL "address" OR RDMARING_SANITIZE STREQUAL "fuzzer")
	include(fuzz.cmake)
endif()
